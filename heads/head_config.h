// Heads: small networks that draft for one target and read its states. What their config.json says, in the
// layouts that are published. docs/heads.md has the table of names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "model_files/model_config.h"

namespace outrider {

enum class HeadKind : uint8_t {
  kEagle,   // EAGLE-1 and 2 (Li et al. 2024, 2401.15077; 2406.16858): one layer over tokens and last states
  kEagle3,  // EAGLE-3 (Li et al. 2025, 2503.01840): states of three layers, a head of its own
  kMtp,     // multi-token prediction (DeepSeek-V3, 2412.19437): one layer over tokens and last states
  kMedusa,  // Medusa (Cai et al. 2024, 2401.10774): branches that read one state
  kDFlash,  // DFlash (2602.06036) and DSpark (2607.05147): a block of tokens in one pass
  kHydra,   // Hydra (Ankner et al. 2024, 2402.05109): branches that read the state and the drafted tokens
};
std::optional<HeadKind> head_kind_of(std::string_view drafter);  // as --drafter names it
std::string_view head_kind_name(HeadKind kind);                  // "eagle3"

struct HeadConfig {
  HeadKind kind = HeadKind::kEagle3;
  ModelConfig layer;             // of its layer, of Medusa and Hydra the target's; vocab_size is the target's
  int64_t draft_vocab_size = 0;  // rows of its own output head; 0: it uses the target's
  std::vector<int64_t> aux_layers;  // of the target (ModelOptions::aux_layers)
  // EAGLE-3 only:
  bool norm_before_fc = false;        // one norm over all states, before they are projected
  bool fc_norm = false;               // ... one for each layer's
  bool norm_before_residual = false;  // the residual stream begins with the normed state
  bool norm_output = false;           // drafting goes on from the normed output
  bool fc_bias = false;               // of EAGLE-1
  bool shared_head = false;           // of Medusa: all branches have one output head
  // Hydra only:
  int64_t branches = 0, branch_layers = 0;
  bool grounded = false;    // a branch reads the draft tokens in front of the token that it predicts
  bool has_prefix = false;  // states go through a layer of the head's own first
  // DFlash only:
  int64_t block_size = 0;    // rows of a block: the last token's, and masks behind it
  TokenId mask_token;        // in the place of a token that is not known yet
  bool from_anchor = false;  // a row predicts the token behind its own; else its own token
  std::vector<bool> causal_layers;  // for each layer: a row of a block sees no later one
  int64_t markov_rank = 0;   // of DSpark: the width through which a token says what comes behind it
  // DFlash 2 only: convolutions around attention and MLP within a block, and CandidateSelector.
  int64_t conv_taps = 0, conv_group = 0;  // of channels; 0 taps: there are none
  int64_t selector_rank = 0, selector_candidates = 0;
  double embedding_scale = 1, logit_factor = 1, logit_cap = 0;  // of the block's inputs, and of its logits

  // Tokens that a block says.
  int64_t block_tokens() const { return from_anchor ? block_size : block_size - 1; }
};

// `target` says what the head must fit. Keys that are missing or that contradict the kind or the target are
// refused by file and name.
Result<HeadConfig> read_head_config(const std::filesystem::path& directory, HeadKind kind,
                                    const ModelConfig& target);

}  // namespace outrider
