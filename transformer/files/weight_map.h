// Maps each weight of one tp_rank to tensors of a model directory, or to parts of tensors. Names and shapes
// are checked here, once for every back-end; no data is read yet.
#pragma once

#include "base/status.h"
#include "transformer/files/model_config.h"
#include "transformer/files/safetensors.h"
#include "transformer/files/weight_sources.h"
#include "transformer/model/shard_plan.h"

namespace outrider {

Result<WeightMap> map_weights(const TensorFiles& files, const ModelConfig& config, const ShardPlan& plan);

// One layer by itself, with a mixture or without. prefix: of its tensors' names, "model.layers.61.".
Result<LayerSources> map_layer(const TensorFiles& files, const ModelConfig& config, const ShardPlan& plan,
                               const std::string& prefix, bool has_experts);

}  // namespace outrider
