// Maps each weight of one tp_rank to tensors of a model directory, or to parts of tensors. Names and shapes
// are checked here, once for every back-end; no data is read yet.
#pragma once

#include "base/status.h"
#include "model_files/model_config.h"
#include "model_files/safetensors.h"
#include "model_files/shard_plan.h"
#include "model_files/weight_sources.h"

namespace outrider {

Result<WeightMap> map_weights(const TensorFiles& files, const ModelConfig& config, const ShardPlan& plan);

// One layer by itself, with a mixture or without. prefix: of its tensors' names, "model.layers.61.".
Result<LayerSources> map_layer(const TensorFiles& files, const ModelConfig& config, const ShardPlan& plan,
                               const std::string& prefix, const LayerKind& kind);

}  // namespace outrider
