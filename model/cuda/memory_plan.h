// Device memory of a model, computed before it is allocated.
#pragma once

#include <algorithm>

#include "kernels/cuda/delta_ops.h"
#include "kernels/cuda/product_rule.h"
#include "model/cuda/batch_inputs.h"
#include "model/cuda/token_runner.h"
#include "model/cuda/weights.h"
#include "model/kv/cuda_kv_storage.h"
#include "model/kv/kv_shape_of.h"
#include "model/model.h"

namespace outrider::cuda {

// Floats of a sequence's recurrent state on a rank: in one layer, and in all.
inline int64_t layer_state_floats(const ShardPlan& shard) {
  if (!shard.delta_net) return 0;
  const DeltaNetPart& own = *shard.delta_net;
  return delta_state_floats(own.values.size(), own.key_dim, own.value_dim);
}
inline int64_t state_floats(const ModelConfig& config, const ShardPlan& shard) {
  return layer_state_floats(shard) *
         std::count_if(config.layers.begin(), config.layers.end(),
                       [](const LayerKind& layer) { return layer.mixer == Mixer::kDeltaNet; });
}

struct MemoryPlan {
  MemoryPlan(const ModelConfig& model_config, const ModelOptions& o, const WeightPlan& weight_plan)
      : config(model_config),
        weights(weight_plan),
        shard(config, o.shard),
        kv_blocks(kv_blocks_for(o.kv_tokens > 0 ? o.kv_tokens : planned_positions(config, o))),
        kv(kv_shape_of(config, shard,
                       o.kv == ModelOptions::Kv::kBFloat16 ||
                               (o.kv == ModelOptions::Kv::kAuto && activation() == WeightType::kBFloat16)
                           ? KvType::kBFloat16
                           : KvType::kFloat32,
                       o.aux_layers.size())),
        states(!config.delta_net       ? 0
               : o.state_sequences > 0 ? o.state_sequences
                                       : o.max_logit_rows) {}

  WeightType activation() const { return weights.types.activation(); }
  // Columns of the widest MLP. A mixture of experts counts as one MLP.
  int64_t columns() const {
    int64_t most = 0;
    for (int64_t i = 0; i < config.num_layers; ++i)
      most = std::max(most, mlp_columns(config, shard, config.layer(i).has_experts).count);
    return most;
  }
  // Columns of activations gathered into the order of codes, rounded up to whole vectors.
  int64_t gathered_columns() const { return round_up(weights.gathered_columns, kAlignedInputs); }
  // KvLayer's.
  int64_t latent_dim() const { return config.latent ? config.latent->kv_rank : 0; }
  // A layer with attention.
  KvLayer layer() const {
    return {.type = kv.type,
            .kv_heads = static_cast<int32_t>(kv.kv_heads),
            .head_dim = static_cast<int32_t>(kv.head_dim),
            .latent_dim = static_cast<int32_t>(latent_dim())};
  }
  // Columns of a layer's first product, and of what goes into its last one in front of the MLP.
  int64_t projected_columns() const {
    return std::max({attention_inputs(config, shard).front().n, 3 * shard.conv_channels.size(),
                     delta_input(config, shard).n});
  }
  int64_t attended_columns() const {
    return std::max({shard.query_heads.size() * layer().value_dim(), shard.conv_channels.size(),
                     shard.delta_net ? shard.delta_net->value_size() : 0});
  }
  int64_t state_bytes() const { return 4 * states * state_floats(config, shard); }
  int64_t kv_bytes() const { return DeviceKvStorage::bytes_for(kv, latent_dim(), kv_blocks); }
  AttentionTiles tiles(int64_t shared_bytes, int64_t max_positions) const {
    const int64_t heads = shard.query_heads.size();
    const AttentionTile tile =
        attention_tile(std::min(heads, config.heads_per_kv_head()), layer(), shared_bytes);
    return {.rows = tile.rows,
            .heads = tile.heads,
            .turn_rows = attention_turn_rows(heads, layer().value_dim(), max_positions)};
  }
  int64_t attention_floats(int64_t max_positions) const {
    const int64_t heads = shard.query_heads.size(), value_dim = layer().value_dim();
    return attention_workspace(attention_turn_rows(heads, value_dim, max_positions), heads, value_dim,
                               max_positions);
  }
  // Floats of workspace for the widest product that may be split over blocks.
  int64_t split_floats(int64_t rows) const {
    int64_t most = 0;
    const auto add = [&](int64_t n) { most = std::max(most, cuda::split_floats(rows, n)); };
    for (const MatrixSize& size : attention_inputs(config, shard)) add(size.n);
    for (const int64_t n : {config.hidden_size, 2 * columns(), shard.vocab.size(), projected_columns()})
      add(n);
    return most;
  }
  int64_t activation_bytes(const ModelOptions& options) const;
  int64_t draw_bytes(const ModelOptions& options) const {
    if (options.run_sequences == 0 || config.delta_net) return 0;
    const int64_t tokens = kv_blocks * kBlockTokens;
    return DeviceDraws::bytes_for(run_limits(options.run_sequences, config.vocab_size, tokens)) +
           DeviceRanking::bytes_for(look_limits(options.max_logit_rows, config.vocab_size, tokens));
  }
  // An error if the device cannot take it; says what goes where.
  Status check(const ModelOptions& options) const;

  ModelConfig config;
  WeightPlan weights;
  ShardPlan shard;
  int64_t kv_blocks;
  KvShape kv;
  int64_t states;  // recurrent ones, each of a sequence
};

}  // namespace outrider::cuda
