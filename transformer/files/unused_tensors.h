// What a model directory holds beside the model.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"
#include "transformer/files/model_config.h"
#include "transformer/files/safetensors.h"

namespace outrider {

// The tensors that no part of a whole model's map reads, sorted, without those that hold nothing of the model
// (the rotation's frequencies, a head that is the embedding again). An error names one that marks weights
// quantised in a way that is not read here: without it the model would compute something else.
Result<std::vector<std::string_view>> unused_tensors(const TensorFiles& files, const ModelConfig& config);

}  // namespace outrider
