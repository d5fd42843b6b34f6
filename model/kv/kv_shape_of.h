// The sizes of the KV cache of one rank, the same for every back-end.
#pragma once

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
  return shape;
}

}  // namespace outrider
