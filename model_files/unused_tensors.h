// Tensors in a model directory that are known not to be part of the model.
#pragma once

#include <set>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model_files/model_config.h"
#include "model_files/safetensors.h"
#include "model_files/weight_sources.h"

namespace outrider {

// The tensors that no part of a whole model's map reads, sorted, without those that hold nothing of the model
// (the rotation's frequencies, a head that is the embedding again). An error names one that marks weights
// quantised in a way that is not read here: without it the model would compute something else.
Result<std::vector<std::string_view>> unused_tensors(const TensorFiles& files, const ModelConfig& config);

// Adds the tensors that these are parts of.
void add_used(const std::vector<TensorPart>& parts, std::set<const TensorInfo*>& used);
void add_used(const LayerSources& layer, std::set<const TensorInfo*>& used);
// compressed-tensors says the shape of packed codes in a tensor beside them, which is checked when they are
// read.
bool is_shape_of_used(const TensorFiles& files, std::string_view name,
                      const std::set<const TensorInfo*>& used);

}  // namespace outrider
