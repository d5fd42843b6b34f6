// The first layers of a model, its final norm and its output head, as a model of their own (LayerSkip,
// Elhoushi et al. 2024, 2404.16710). Keys and values are the model's: those of these layers are what a whole
// pass would have written, and those of the layers behind are not, so the caller truncates the tokens again.
// What was computed can be kept aside for the whole pass that follows.
#pragma once

#include <span>

#include "transformer/model/exited_tokens.h"
#include "transformer/model/model.h"

namespace outrider {

// As Model::forward, which every rank calls at the same time, but through `layers` layers, at least one.
// exited[i] gets the tokens of batch[i]. kUnsupported: the model does not compute on the host.
Result<LogitsShard> forward_first(Model& model, std::span<const BatchSlice> batch, int64_t layers,
                                  std::span<ExitedTokens* const> exited);

// Rows of whole passes that went on from where they had exited (BatchSlice::exited), since the model was
// made.
int64_t rows_taken_up(const Model& model);

}  // namespace outrider
