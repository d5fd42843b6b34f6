// The part of a model that one tp_rank computes: pure arithmetic on its sizes, the same for every back-end.
#pragma once

#include <optional>
#include <vector>

#include "base/shard.h"
#include "model_files/model_config.h"

namespace outrider {

// Which columns of an MLP's intermediate activations, or which channels of a short convolution, a rank
// computes: units of 32, spread over the leaves.
struct MlpCut {
  MlpCut(int64_t intermediate_size, Shard shard);

  IndexRange columns;
  std::vector<int64_t> leaf_ends;  // along this rank's part
};

// Heads of a gated delta net that a rank computes. Value heads follow the leaves; a key head is computed by
// every rank whose value heads read it.
struct DeltaNetPart {
  DeltaNetPart(const DeltaNetConfig& config, Shard shard);

  IndexRange values;
  std::vector<int64_t> keys;  // ascending
  int64_t key_dim = 0, value_dim = 0;
  std::vector<int64_t> leaf_ends;  // along the output of its value heads

  int64_t key_size() const { return static_cast<int64_t>(keys.size()) * key_dim; }
  int64_t value_size() const { return values.size() * value_dim; }
  int64_t row_size() const { return 2 * key_size() + value_size() + 2 * values.size(); }
};

// Which heads and columns a rank computes. Query heads and columns follow the leaves of shard.h; a KV head is
// held by every rank whose query heads read it.
struct ShardPlan {
  ShardPlan(const ModelConfig& config, Shard shard);

  Shard shard;
  IndexRange query_heads;
  IndexRange kv_heads;
  IndexRange mlp_columns;    // of intermediate_size
  IndexRange conv_channels;  // of hidden_size, in layers with a short convolution
  IndexRange vocab;
  std::vector<int64_t> attention_leaf_ends;  // along this rank's attention output, in columns
  std::vector<int64_t> kv_leaf_ends;         // along its keys; one that several ranks hold is its leaf's
  std::vector<int64_t> mlp_leaf_ends;        // along this rank's part of the intermediate activations
  std::vector<int64_t> conv_leaf_ends;       // along its channels
  std::optional<DeltaNetPart> delta_net;     // in layers with a gated delta net

  // Numbers of a token that a layer without keys keeps.
  int64_t kept_row_size() const { return delta_net ? delta_net->row_size() : conv_channels.size(); }
};

// The part of a layer with attention that a rank computes.
struct LayerPart {
  LayerPart(const ModelConfig& config, const ShardPlan& plan, const LayerKind& kind);

  int64_t head_dim = 0;
  int64_t query_heads = 0;
  IndexRange kv_heads;
  int64_t heads_per_kv = 1;
  int64_t mlp_columns = 0;
  bool has_keys = true;          // else it reads those of another layer
  bool values_are_keys = false;  // LayerKind

  int64_t q_size() const { return query_heads * head_dim; }
  int64_t kv_size() const { return kv_heads.size() * head_dim; }
  // Queries, and keys and values where the layer makes some.
  int64_t made() const { return q_size() + (has_keys ? (values_are_keys ? 1 : 2) * kv_size() : 0); }
};

}  // namespace outrider
