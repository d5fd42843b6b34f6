// The parameters of a head, found under the names that are published and packed for the kernels. What a head
// does not bring of its own it takes from its target's files.
#pragma once

#include <optional>
#include <vector>

#include "heads/head_tensors.h"
#include "heads/state_projection.h"

namespace outrider {

// Shapes with hidden H of the head.
struct HeadWeights {
  std::optional<TokenTable> tokens;
  StateProjectionWeights projection;  // applied to states once
  PackedMatrix fc;                    // [H, 2 H], applied to each pair; not of EAGLE-3
  std::vector<float> fc_bias;
  std::vector<float> token_norm;      // [H]; EAGLE-1 has none of these four
  std::vector<float> hidden_norm;     // [H]
  std::vector<float> attention_norm;  // [H], MTP and Hydra only
  std::vector<float> output_norm;     // [H]
  LayerWeights layer;                 // attention_norm unused; qkv of EAGLE-3 has 2 H columns
  PackedMatrix head;                  // [draft vocabulary, H]; not of Hydra
  std::vector<TokenId> target_ids;    // of the draft vocabulary; empty: the target's ids
  int64_t bytes = 0;                  // read for each drafted token
};

// Errors name file and tensor: what is missing, has another shape, or does not belong to a head of this kind.
Result<HeadWeights> load_head_weights(const std::filesystem::path& directory, const HeadConfig& config,
                                      const std::filesystem::path& target_directory,
                                      const ModelConfig& target, WeightFormat format, ThreadPool& pool);

// Its projection alone, of a head of any kind.
Result<StateProjectionWeights> load_state_projection(const std::filesystem::path& directory,
                                                     const HeadConfig& config,
                                                     const std::filesystem::path& target_directory,
                                                     const ModelConfig& target, WeightFormat format,
                                                     ThreadPool& pool);

}  // namespace outrider
