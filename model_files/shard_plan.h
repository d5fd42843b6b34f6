// The part of a model that one tp_rank computes: pure arithmetic on its sizes, the same for every back-end.
#pragma once

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
};

}  // namespace outrider
