// The table of model families: what an architecture is called, how its tensors are named, what its class in
// transformers computes, and which keys of config.json it reads. Reading, refusals, the mapping of weights
// and the lists in README.md and docs/families.md follow from it; the forward pass knows no family.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

#include "model_files/model_config.h"

namespace outrider {

// Which projections of attention have a bias.
enum class AttentionBias : uint8_t {
  kNone,       // "attention_bias": true is refused
  kQkv,        // q, k and v, always
  kQkvByKey,   // q, k and v unless "qkv_bias" is false
  kQkvoByKey,  // all four if "attention_bias" is true
  kByTwoKeys,  // q, k and v if "attention_bias" is true, o if "attention_out_bias" is
  kUseBias     // all four, and gate, up and down of the MLP, if "use_bias" is true
};

// How a family stores the projections of its gated delta nets.
enum class DeltaNets : uint8_t {
  kNone,
  kFused,  // in_proj_qkvz and in_proj_ba, head by head (Qwen3-Next)
  kSplit   // in_proj_qkv, in_proj_z, in_proj_b and in_proj_a (Qwen3.5)
};

// Which layers see only a window of "sliding_window" positions.
enum class Windows : uint8_t {
  kNone,         // the class reads no such key; one is refused
  kOffOnly,      // "use_sliding_window": true is refused
  kEveryLayer,   // where there is a window, whatever "layer_types" says
  kUpperLayers,  // with "use_sliding_window": those of "layer_types", or from "max_window_layers" on
  kEveryOther,   // those of "layer_types", or the even ones
  kByPattern,   // those of "layer_types", or all but each "sliding_window_pattern"-th; they turn by the local
                // rotation
  kWithoutRope  // with "use_sliding_window": those of "layer_types", or those without rotation
};

// Names of tensors, where families differ.
struct TensorNames {
  std::string_view attention_norm = "input_layernorm";     // in front of attention, or of a short convolution
  std::string_view mlp_norm = "post_attention_layernorm";  // in front of the MLP, if it has no norm behind it
  std::string_view o = "o_proj";                           // behind "self_attn."
  std::string_view mlp = "mlp.";
  std::string_view gate = "gate_proj", up = "up_proj", down = "down_proj";
  std::string_view final_norm = "norm";  // behind "model."
};

// A number of config.json that goes into the arithmetic.
struct ScaleKey {
  enum class Kind : uint8_t { kFactor, kInverseRoot, kCap };  // kCap: null means none
  std::string_view key;
  double ModelScales::*to = nullptr;
  double fallback = 1;  // where the key is missing
  Kind kind = Kind::kFactor;
};

// How a token's experts are chosen.
enum class Routing : uint8_t {
  kLargest,
  kGroups,          // "topk_method": greedy, or group_limited_greedy (DeepSeek-V2)
  kCorrected,       // noaux_tc: of sigmoids, with a correction, in groups (DeepSeek-V3)
  kCorrectedAlone,  // the same without groups, shared experts and a factor (MiniMax-M2)
  kSigmoids,        // corrected if "use_expert_bias" is true, without groups and shared experts (LFM2)
  kCorrectedShares  // of shares of a softmax, with a correction (Ernie 4.5)
};

struct ExpertNames {
  std::string_view block;           // behind "model.layers.N."
  std::string_view gate, up, down;  // of one expert; of all, where they are packed: gate is gate and up
  std::string_view count_key;
  std::string_view chosen_key = "num_experts_per_tok";
  std::string_view size_key;  // of the intermediate activations of one expert
  bool has_shared = false;
  bool may_skip_layers = false;      // "mlp_only_layers", "decoder_sparse_step"
  bool always_renormalises = false;  // else "norm_topk_prob"
  bool renormalises = false;         // where "norm_topk_prob" is missing
  std::string_view router = "gate";
  Routing routing = Routing::kLargest;
  std::string_view shared = "shared_expert.";
  bool shared_is_gated = true;
  bool dense_layers_first = false;  // "first_k_dense_replace"
  bool layers_by_range = false;     // "moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"
  double factor = 1;                // "routed_scaling_factor" where it is missing
  std::string_view correction = "gate.e_score_correction_bias";  // behind `block`
  // All experts in one tensor [experts, inputs, outputs], gates and ups in turns; or in MXFP4, outputs first.
  bool packed = false;
  bool biases = false;  // ExpertConfig::biases
  bool beside_mlp = false;  // ExpertConfig::beside_mlp; there are experts if "enable_moe_block" is true
};

// Values that the family's Hugging Face class assumes where config.json lacks the key.
struct FamilyDefaults {
  int64_t head_dim = 0;  // 0: hidden_size / num_attention_heads
  double rope_theta = 10000;
  double norm_epsilon = 1e-6;
  int64_t window = 0;          // 0: none
  int64_t full_every = 6;      // kByPattern: the n-th layer sees all
  double local_theta = 10000;  // of layers with a window (kByPattern); 0: "rope_theta"
  double rotated_share = 1;    // "partial_rotary_factor"
  bool tied = false;
  bool attention_bias = false;
};

struct FamilyTraits {
  ModelFamily family;
  std::string_view title;   // for people
  std::string_view models;  // that have been published
  std::string_view model_type;
  std::string_view architecture;
  std::string_view special;  // what sets it apart from Llama, for the list in the documentation
  NormPlace norm_place = NormPlace::kBefore;
  bool norm_adds_one = false;
  QkNorm qk_norm = QkNorm::kNone;
  bool qk_norm_by_key = false;                            // only if "use_qk_norm" is true
  bool norms_rotated = false;                             // q and k are normed behind the rotation
  std::string_view q_norm = "q_norm", k_norm = "k_norm";  // behind "self_attn."
  TensorNames names = {};
  AttentionBias attention_bias = AttentionBias::kNone;
  bool reads_mlp_bias = false;
  bool attention_sinks = false;
  bool latent_attention = false;
  bool short_convolutions = false;          // in place of attention in some layers; sizes by LFM2's keys
  DeltaNets delta_nets = DeltaNets::kNone;  // in the layers that "layer_types" calls linear_attention
  bool attention_gate = false;              // ModelConfig::attention_gate
  bool varied_layers = false;               // sizes, keys and values of layers by Gemma 4's keys
  bool fused_projections = false;           // qkv_proj and gate_up_proj
  std::string_view epsilon_key = "rms_norm_eps";
  std::string_view activation_key = "hidden_act";
  Activation activation = Activation::kSilu;
  bool embedding_times_root = false;    // of hidden_size
  bool partial_rotation = false;        // "partial_rotary_factor" is read
  bool rotates_by_layer = false;        // "no_rope_layers"
  bool rotates_neighbours = false;      // RopeConfig::interleaved
  bool has_ntk_alpha = false;           // "alpha" of a dynamic rotation
  bool long_rope_only = false;          // of the scaled rotations
  bool rotation_must_be_given = false;  // versions of the class differ in what they assume
  Windows windows = Windows::kNone;
  std::span<const ScaleKey> scales = {};
  const ExpertNames* experts = nullptr;
  std::span<const std::string_view> keys = {};  // further ones that it reads
  FamilyDefaults defaults = {};
  std::string_view other_type = {};          // a second "model_type" under which the family is published
  std::string_view other_architecture = {};  // a second name of "architectures"

  // Whether it reads a key beside those that all do.
  bool reads(std::string_view key) const { return std::find(keys.begin(), keys.end(), key) != keys.end(); }
  bool is_type(std::string_view type) const {
    return type == model_type || (!other_type.empty() && type == other_type);
  }
};

std::span<const FamilyTraits> family_table();
const FamilyTraits& traits_of(ModelFamily family);
// Null if there is none.
const FamilyTraits* find_architecture(std::string_view architecture);
const FamilyTraits* find_model_type(std::string_view model_type);

// "Llama, ... and Qwen3-MoE"
std::string supported_titles();
// "LlamaForCausalLM, ... and Qwen3MoeForCausalLM"
std::string supported_architectures();
// "llama, ... and qwen3_moe"
std::string supported_model_types();

}  // namespace outrider
