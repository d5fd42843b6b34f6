// Frequencies of the rotary embedding (Su et al. 2021), with Llama 3.1's stretching.
#pragma once

#include <vector>

#include "transformer/files/model_config.h"

namespace outrider {

// One per pair of dimensions, in fp32 and in the order of operations of the reference implementation.
std::vector<float> rope_frequencies(const ModelConfig& config);

}  // namespace outrider
