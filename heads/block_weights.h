// The parameters of a DFlash head, found under the names that are published and packed for the kernels. What
// it does not bring of its own it takes from its target's files.
#pragma once

#include <optional>
#include <vector>

#include "heads/head_tensors.h"
#include "heads/state_projection.h"

namespace outrider {

// With hidden H, q and kv numbers of all heads together.
struct BlockLayer {
  std::vector<float> attention_norm, mlp_norm;  // [H]
  std::vector<float> q_norm, k_norm;            // [head_dim]; empty where the family has none
  PackedMatrix q;                               // [q, H]
  PackedMatrix kv;                              // [2 * kv, H]: keys, then values
  PackedMatrix o;                               // [H, q]
  std::vector<float> q_bias, kv_bias, o_bias;
  DenseMlp mlp;
};

struct BlockWeights {
  std::optional<TokenTable> tokens;
  StateProjectionWeights projection;
  std::vector<BlockLayer> layers;
  std::vector<float> output_norm;       // [H]
  PackedMatrix head;                    // [own vocabulary, H]
  std::vector<TokenId> target_ids;      // of the own vocabulary; empty: the target's ids
  std::optional<TokenTable> markov_of;  // [vocabulary, rank], of DSpark
  PackedMatrix markov_to;               // [own vocabulary, rank]
  int64_t bytes = 0;                    // read for each block
};

// Errors name file and tensor: what is missing, has another shape, or does not belong to a head of this kind.
Result<BlockWeights> load_block_weights(const std::filesystem::path& directory, const HeadConfig& config,
                                        const std::filesystem::path& target_directory,
                                        const ModelConfig& target, WeightFormat format, ThreadPool& pool);

}  // namespace outrider
