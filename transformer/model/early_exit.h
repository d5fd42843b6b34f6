// The first layers of a model, its final norm and its output head, as a model of their own (LayerSkip,
// Elhoushi et al. 2024, 2404.16710). Keys and values are the model's: those of these layers are what a whole
// pass would have written, and those of the layers behind are not, so the caller truncates the tokens again.
#pragma once

#include <span>

#include "transformer/model/model.h"

namespace outrider {

// As Model::forward, which every rank calls at the same time, but through `layers` layers, at least one.
// kUnsupported: the model does not compute on the host.
Result<LogitsShard> forward_first(Model& model, std::span<const BatchSlice> batch, int64_t layers);

}  // namespace outrider
