// Frequencies of the rotary embedding (Su et al. 2021), with the scalings of model_config.h.
#pragma once

#include <vector>

#include "model_files/model_config.h"

namespace outrider {

// One per pair of dimensions that turn, in fp32 and in the order of operations of the reference
// implementation.
std::vector<float> rope_frequencies(const RopeConfig& rope, int64_t head_dim);

}  // namespace outrider
