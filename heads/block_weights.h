// The parameters of a DFlash head, found under the names that are published in the
// memory of the head's compute. What it does not bring of its own it takes from its target's files.
#pragma once

#include <optional>
#include <vector>

#include "heads/candidate_selector.h"
#include "heads/head_weights.h"

namespace outrider {

// Convolutions of DFlash 2 in front of attention or an MLP and behind it (HeadCompute::convolve).
struct BlockConvolutions {
  HeadVector before, behind;  // base coefficients, [taps, H]
  HeadMatrix coefficients;    // [2 * taps * groups, H]: those of a row, in front and behind
};

// With hidden H, q and kv numbers of all heads together.
struct BlockLayer {
  HeadVector attention_norm;  // [H]
  HeadVector q_norm, k_norm;  // [head_dim]; empty where the family has none
  HeadMatrix q;               // [q, H]
  HeadMatrix kv;              // [2 * kv, H]: keys, then values
  HeadMatrix o;               // [H, q]
  HeadVector q_bias, kv_bias, o_bias;
  HeadMlp mlp;
  BlockConvolutions attention_conv, mlp_conv;  // of DFlash 2
};

struct BlockWeights {
  std::optional<TokenTable> tokens;
  HiddenStateProjectionWeights projection;
  std::vector<BlockLayer> layers;
  HeadVector output_norm;               // [H]
  HeadMatrix head;                      // [own vocabulary, H]
  std::vector<TokenId> target_ids;      // of the own vocabulary; empty: the target's ids
  std::optional<TokenTable> markov_of;  // [vocabulary, rank], of DSpark
  HeadMatrix markov_to;                 // [own vocabulary, rank]
  SelectorWeights selector;             // of DFlash 2
  int64_t bytes = 0;                    // read for each block
};

// Errors name file and tensor: what is missing, has another shape, or does not belong to a head of this kind.
Result<BlockWeights> load_block_weights(const std::filesystem::path& directory, const HeadConfig& config,
                                        const std::filesystem::path& target_directory,
                                        const ModelConfig& target, WeightFormat format, HeadCompute& compute);

}  // namespace outrider
