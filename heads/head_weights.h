// The parameters of a head, found under the names that are published in the
// memory of the head's compute. What a head
// does not bring of its own it takes from its target's files.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "heads/head_tensors.h"
#include "heads/hidden_state_projection.h"

namespace outrider {

// The MLP of a layer with hidden size H and C columns.
struct HeadMlp {
  int64_t bytes() const { return gate_up.bytes + down.bytes; }

  HeadVector norm;     // [H]
  HeadMatrix gate_up;  // [2 C, H]: gates, then ups
  HeadVector gate_up_bias;
  HeadMatrix down;  // [H, C]
  HeadVector down_bias;
};
// `name` of a tensor within the layer: "mlp.gate_proj.weight".
Result<HeadMlp> load_head_mlp(HeadTensors& tensors, const ModelConfig& config,
                              const std::function<std::string(const char*)>& name);

// Shapes with hidden H of the head.
struct HeadWeights {
  std::optional<TokenTable> tokens;
  HiddenStateProjectionWeights projection;  // applied to states once
  HeadMatrix fc;                            // [H, 2 H], applied to each pair; not of EAGLE-3
  HeadVector fc_bias;
  HeadVector token_norm;            // [H]; EAGLE-1 has no norm of its own (this one to output_norm)
  HeadVector hidden_norm;           // [H]
  HeadVector attention_norm;        // [H], MTP and Hydra only
  bool hidden_state_first = false;  // of a pair, in front of its token
  HeadVector output_norm;           // [H]
  HeadMatrix qkv;                   // [q + k + v, H], of EAGLE-3 2 H
  HeadMatrix attention_gate;        // [q, H], of MTP where the layer has one
  HeadVector qkv_bias;
  HeadVector q_norm, k_norm;  // [head_dim]; empty where the family has none
  HeadMatrix o;               // [H, q]
  HeadVector o_bias;
  HeadMlp mlp;
  // MTP only: `latent` in the place of qkv, and `experts` in the place of the MLP's matrices, behind
  // mlp.norm.
  HeadPart latent, experts;
  HeadMatrix head;                  // [draft vocabulary, H]; not of Hydra
  std::vector<TokenId> target_ids;  // of the draft vocabulary; empty: the target's ids
  int64_t bytes = 0;                // read for each drafted token
};

// Errors name file and tensor: what is missing, has another shape, or does not belong to a head of this kind.
Result<HeadWeights> load_head_weights(const std::filesystem::path& directory, const HeadConfig& config,
                                      const std::filesystem::path& target_directory,
                                      const ModelConfig& target, WeightFormat format, HeadCompute& compute);

// The target's norm behind its last layer.
HeadVector load_final_norm(const WeightMap& map, const ModelConfig& target, HeadCompute& compute);

// Its projection alone, of a head of any kind.
Result<HiddenStateProjectionWeights> load_hidden_state_projection(
    const std::filesystem::path& directory, const HeadConfig& config,
    const std::filesystem::path& target_directory, const ModelConfig& target, WeightFormat format,
    HeadCompute& compute);

}  // namespace outrider
