// The sizes of the KV cache of one rank, the same for every back-end.
#pragma once

#include <algorithm>

#include "base/kv_shape.h"
#include "model_files/model_config.h"
#include "model_files/shard_plan.h"

namespace outrider {

// hidden_states: how many hidden states of a token are kept besides.
inline KvShape kv_shape_of(const ModelConfig& config, const ShardPlan& plan, KvType type,
                           size_t hidden_states) {
  KvShape shape{.layers = config.num_layers,
                .kv_heads = plan.kv_heads.size(),
                .head_dim = config.head_dim,
                .type = type,
                .hidden_state_size = static_cast<int64_t>(hidden_states) * config.hidden_size,
                .row_size = plan.kept_row_size()};
  if (config.keeps_rows())
    for (int64_t i = 0; i < config.num_layers; ++i)
      shape.row_layers.push_back(config.layer(i).mixer != Mixer::kAttention);
  const auto differs = [](const LayerKind& kind) {
    return kind.head_dim != 0 || kind.kv_heads != 0 || kind.kv_of >= 0;
  };
  if (std::any_of(config.layers.begin(), config.layers.end(), differs))
    for (int64_t i = 0; i < config.num_layers; ++i) {
      const LayerKind kind = config.layer(i);
      const LayerPart part(config, plan, kind);
      shape.layer_sizes.push_back({.kv_heads = part.kv_heads.size(),
                                   .head_dim = part.head_dim,
                                   .of = kind.kv_of >= 0 ? kind.kv_of : i});
    }
  return shape;
}

}  // namespace outrider
