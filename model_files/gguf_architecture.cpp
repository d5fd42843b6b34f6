#include "model_files/gguf_architecture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "model_files/family.h"
#include "model_files/gguf_varied_layers.h"

namespace outrider {
namespace {

using nlohmann::json;
using Kind = GgufKey::Kind;

constexpr std::array kMixtralGguf = std::to_array<GgufKey>(
    {{"expert_count", "num_local_experts"}, {"expert_used_count", "num_experts_per_tok"}});
constexpr std::array kGptOssGguf =
    std::to_array<GgufKey>({{"expert_count", "num_local_experts"},
                            {"expert_used_count", "num_experts_per_tok"},
                            {"expert_feed_forward_length", "intermediate_size"},
                            {"attention.sliding_window", "sliding_window"}});
constexpr std::array kQwenMoeGguf =
    std::to_array<GgufKey>({{"expert_count", "num_experts"},
                            {"expert_used_count", "num_experts_per_tok"},
                            {"expert_feed_forward_length", "moe_intermediate_size"},
                            {"expert_shared_feed_forward_length", "shared_expert_intermediate_size"}});
constexpr std::array kGemma2Gguf =
    std::to_array<GgufKey>({{"attention.sliding_window", "sliding_window"},
                            {"attn_logit_softcapping", "attn_logit_softcapping", Kind::kNumber},
                            {"final_logit_softcapping", "final_logit_softcapping", Kind::kNumber}});
constexpr std::array kGemma3Gguf =
    std::to_array<GgufKey>({{"rope.freq_base_swa", "rope_local_base_freq", Kind::kNumber},
                            {"final_logit_softcapping", "final_logit_softcapping", Kind::kNumber}});
constexpr std::array kGraniteGguf =
    std::to_array<GgufKey>({{"attention.scale", "attention_multiplier", Kind::kNumber},
                            {"embedding_scale", "embedding_multiplier", Kind::kNumber},
                            {"residual_scale", "residual_multiplier", Kind::kNumber},
                            {"logit_scale", "logits_scaling", Kind::kNumber}});
constexpr std::array kGemma4Gguf =
    std::to_array<GgufKey>({{"attention.sliding_window", "sliding_window"},
                            {"attention.shared_kv_layers", "num_kv_shared_layers"},
                            {"embedding_length_per_layer_input", "hidden_size_per_layer_input"},
                            {"final_logit_softcapping", "final_logit_softcapping", Kind::kNumber},
                            {"expert_count", "num_experts"},
                            {"expert_used_count", "top_k_experts"},
                            {"expert_feed_forward_length", "moe_intermediate_size"}});
constexpr std::array kOlmo3Gguf = std::to_array<GgufKey>({{"attention.sliding_window", "sliding_window"}});
constexpr std::array kGlm4MoeGguf =
    std::to_array<GgufKey>({{"leading_dense_block_count", "first_k_dense_replace"},
                            {"expert_count", "n_routed_experts"},
                            {"expert_used_count", "num_experts_per_tok"},
                            {"expert_feed_forward_length", "moe_intermediate_size"},
                            {"expert_shared_count", "n_shared_experts"},
                            {"expert_group_count", "n_group"},
                            {"expert_group_used_count", "topk_group"},
                            {"expert_weights_norm", "norm_topk_prob", Kind::kFlag},
                            {"expert_weights_scale", "routed_scaling_factor", Kind::kNumber}});
constexpr std::array kMinimaxM2Gguf =
    std::to_array<GgufKey>({{"expert_count", "num_local_experts"},
                            {"expert_used_count", "num_experts_per_tok"},
                            {"expert_feed_forward_length", "intermediate_size"}});
constexpr std::array kErnie45MoeGguf =
    std::to_array<GgufKey>({{"expert_count", "moe_num_experts"},
                            {"expert_used_count", "moe_k"},
                            {"expert_feed_forward_length", "moe_intermediate_size"},
                            {"expert_shared_count", "moe_num_shared_experts"},
                            {"leading_dense_block_count", "moe_layer_start_index"},
                            {"interleave_moe_layer_step", "moe_layer_interval"}});
constexpr std::array kLfm2Gguf = std::to_array<GgufKey>({{"shortconv.l_cache", "conv_L_cache"}});
constexpr std::array kLfm2MoeGguf =
    std::to_array<GgufKey>({{"shortconv.l_cache", "conv_L_cache"},
                            {"leading_dense_block_count", "num_dense_layers"},
                            {"expert_count", "num_experts"},
                            {"expert_used_count", "num_experts_per_tok"},
                            {"expert_feed_forward_length", "moe_intermediate_size"},
                            {"expert_weights_norm", "norm_topk_prob", Kind::kFlag},
                            {"expert_weights_scale", "routed_scaling_factor", Kind::kNumber}});
constexpr std::array kDeepseekGguf =
    std::to_array<GgufKey>({{"leading_dense_block_count", "first_k_dense_replace"},
                            {"attention.kv_lora_rank", "kv_lora_rank"},
                            {"expert_count", "n_routed_experts"},
                            {"expert_used_count", "num_experts_per_tok"},
                            {"expert_feed_forward_length", "moe_intermediate_size"},
                            {"expert_shared_count", "n_shared_experts"},
                            {"expert_weights_scale", "routed_scaling_factor", Kind::kNumber},
                            {"rope.dimension_count", "qk_rope_head_dim"}});

constexpr std::array kQwen35Gguf =
    std::to_array<GgufKey>({{"ssm.conv_kernel", "linear_conv_kernel_dim"},
                            {"ssm.state_size", "linear_key_head_dim"},
                            {"ssm.group_count", "linear_num_key_heads"},
                            {"ssm.time_step_rank", "linear_num_value_heads"},
                            {"full_attention_interval", "full_attention_interval"}});
constexpr std::array kQwen35MoeGguf =
    std::to_array<GgufKey>({{"ssm.conv_kernel", "linear_conv_kernel_dim"},
                            {"ssm.state_size", "linear_key_head_dim"},
                            {"ssm.group_count", "linear_num_key_heads"},
                            {"ssm.time_step_rank", "linear_num_value_heads"},
                            {"full_attention_interval", "full_attention_interval"},
                            {"expert_count", "num_experts"},
                            {"expert_used_count", "num_experts_per_tok"},
                            {"expert_feed_forward_length", "moe_intermediate_size"},
                            {"expert_shared_feed_forward_length", "shared_expert_intermediate_size"}});

using Keys = std::string_view;
// "rope.dimension_sections": of images; text has the same position in all sections.
constexpr std::array kDeltaNetMore =
    std::to_array<Keys>({"ssm.inner_size", "attention.recurrent_layers", "rope.dimension_sections"});
constexpr std::array kWindowPattern = std::to_array<Keys>({"attention.sliding_window_pattern"});
constexpr std::array kGemma3More =
    std::to_array<Keys>({"attention.sliding_window", "attention.sliding_window_pattern"});
constexpr std::array kGemma4More =
    std::to_array<Keys>({"attention.sliding_window_pattern", "attention.key_length_swa",
                         "attention.value_length_swa", "rope.freq_base_swa", "rope.dimension_count_swa"});
constexpr std::array kOlmo3More =
    std::to_array<Keys>({"attention.sliding_window_pattern", "rope.freq_base_swa"});
constexpr std::array kGatingMore = std::to_array<Keys>({"expert_gating_func"});
// The converter does not compute the shared experts' size from theirs.
constexpr std::array kErnie45MoeMore = std::to_array<Keys>({"expert_shared_feed_forward_length"});
constexpr std::array kPhi3More = std::to_array<Keys>({"attention.sliding_window"});
constexpr std::array kDeepseekMore = std::to_array<Keys>(
    {"attention.q_lora_rank", "attention.key_length_mla", "attention.value_length_mla", "expert_gating_func",
     "expert_group_count", "expert_group_used_count", "expert_weights_norm"});

// Layers with a window, where the file says so: a period whose last layer sees all, or a flag for each layer.
Status read_window_pattern(const GgufKeys& keys, json& config) {
  const GgufValue* value = keys.content().find(keys.name("attention.sliding_window_pattern"));
  if (!value) return {};
  const auto* array = std::get_if<GgufArray>(value);
  const auto layers = config.value("num_hidden_layers", int64_t{0});
  std::optional<int64_t> period;
  if (!array) {
    ASSIGN_OR_RETURN(period, keys.integer("attention.sliding_window_pattern"));
  } else if (array->count < static_cast<uint64_t>(layers)) {
    return malformed(fmt::format("{}: {} has {} entries for {} layers", keys.file(),
                                 keys.name("attention.sliding_window_pattern"), array->count, layers));
  }
  json types = json::array();
  for (int64_t i = 0; i < layers; ++i) {
    const bool slides =
        array ? array->number(static_cast<uint64_t>(i)) != 0 : *period == 0 || (i + 1) % *period != 0;
    types.push_back(slides ? "sliding_attention" : "full_attention");
  }
  config["layer_types"] = types;
  return {};
}

// Scores are divided by the root of a head's size, but in the model of 27 billion of either generation.
void scale_scores(json& config, int64_t layers_of_27b) {
  const int64_t heads = config["num_attention_heads"], hidden = config["hidden_size"];
  const bool is_27b = config["num_hidden_layers"] == layers_of_27b;
  config["query_pre_attn_scalar"] = is_27b && heads > 0 ? hidden / heads : config["head_dim"].get<int64_t>();
}

Status complete_gemma2(const GgufKeys& keys, json& config) {
  constexpr int64_t kLayersOf27B = 46;
  scale_scores(config, kLayersOf27B);
  return read_window_pattern(keys, config);
}

Status complete_gemma3(const GgufKeys& keys, json& config) {
  constexpr int64_t kLayersOf27B = 62;
  scale_scores(config, kLayersOf27B);
  ASSIGN_OR_RETURN(const auto window, keys.integer("attention.sliding_window"));
  config["sliding_window"] = window && *window > 0 ? json(*window) : json();
  return read_window_pattern(keys, config);
}

Status complete_phi3(const GgufKeys& keys, json& config) {
  ASSIGN_OR_RETURN(const auto window, keys.integer("attention.sliding_window"));
  config["sliding_window"] = window && *window > 0 ? json(*window) : json();
  return {};
}

// Their classes and llama.cpp differ in whether the weights of chosen experts add up to 1 by default.
Status complete_qwen2_moe(const GgufKeys&, json& config) {
  config["norm_topk_prob"] = false;
  return {};
}
Status complete_qwen3_moe(const GgufKeys&, json& config) {
  config["norm_topk_prob"] = true;
  return {};
}

// The class cuts the band of frequencies that are scaled without rounding it to whole pairs.
Status complete_gpt_oss(const GgufKeys& keys, json& config) {
  if (config.contains("rope_scaling")) config["rope_scaling"]["truncate"] = false;
  return read_window_pattern(keys, config);
}

// Layers with a window have a rotation of their own, which no key scales.
Status complete_olmo3(const GgufKeys& keys, json& config) {
  json full = config.value("rope_scaling", json{{"rope_type", "default"}}), local{{"rope_type", "default"}};
  ASSIGN_OR_RETURN(const auto local_theta, keys.number("rope.freq_base_swa"));
  if (config.contains("rope_theta")) full["rope_theta"] = local["rope_theta"] = config["rope_theta"];
  if (local_theta) local["rope_theta"] = *local_theta;
  config["rope_parameters"] = {{"full_attention", full}, {"sliding_attention", local}};
  config.erase("rope_scaling");
  config.erase("rope_theta");
  return read_window_pattern(keys, config);
}

constexpr int64_t kSigmoidGating = 2;

// Refuses a file whose router scores by another function than sigmoids.
Status check_sigmoid_gating(const GgufKeys& keys) {
  ASSIGN_OR_RETURN(const auto gating, keys.integer("expert_gating_func"));
  if (gating.value_or(kSigmoidGating) == kSigmoidGating) return {};
  return unsupported(fmt::format("{}: {} is {}; only {}, sigmoid, is supported", keys.file(),
                                 keys.name("expert_gating_func"), *gating, kSigmoidGating));
}

Status complete_glm4_moe(const GgufKeys& keys, json& config) {
  for (const char* key : {"n_group", "topk_group"})
    if (!config.contains(key)) config[key] = 1;
  config["use_qk_norm"] = keys.content().tensor("blk.0.attn_q_norm.weight") != nullptr;
  return check_sigmoid_gating(keys);
}

Status complete_ernie45_moe(const GgufKeys&, json& config) {
  if (!config.contains("moe_num_shared_experts")) config["moe_num_shared_experts"] = 0;
  return {};
}

Status complete_minimax_m2(const GgufKeys& keys, json&) { return check_sigmoid_gating(keys); }

// Layers with a short convolution have no KV heads.
Status read_conv_layers(const GgufKeys& keys, json& config) {
  if (config.contains("rms_norm_eps")) config["norm_eps"] = config["rms_norm_eps"];
  config.erase("rms_norm_eps");
  if (!config.contains("conv_L_cache"))
    return malformed(fmt::format("{}: has no {}", keys.file(), keys.name("shortconv.l_cache")));
  const std::string name = keys.name("attention.head_count_kv");
  const GgufArray* heads = gguf_array(keys.content(), name);
  const auto layers = config["num_hidden_layers"].get<uint64_t>();
  if (heads == nullptr || !heads->texts.empty() || heads->count != layers)
    return malformed(
        fmt::format("{}: {} must be a list of {} numbers, one for each layer", keys.file(), name, layers));
  int64_t most = 0;
  json types = json::array();
  for (uint64_t i = 0; i < layers; ++i) {
    const auto whole = heads->whole(i);
    if (!whole || *whole < 0)
      return malformed(fmt::format("{}: {} must be a list of whole numbers", keys.file(), name));
    const int64_t own = *whole;
    if (own != 0 && most != 0 && own != most)
      return unsupported(
          fmt::format("{}: {} has {} and {}; one number for all layers with attention is supported",
                      keys.file(), name, most, own));
    most = std::max(most, own);
    types.push_back(own == 0 ? "conv" : "full_attention");
  }
  config["layer_types"] = types;
  if (most > 0) config["num_key_value_heads"] = most;
  return {};
}

// The file has the MLP's columns as the class computes them.
Status complete_lfm2(const GgufKeys& keys, json& config) {
  config["block_auto_adjust_ff_dim"] = false;
  return read_conv_layers(keys, config);
}

bool has_correction(const GgufContent& content) {
  return std::any_of(content.tensors.begin(), content.tensors.end(),
                     [](const TensorInfo& tensor) { return tensor.name.ends_with(".exp_probs_b.bias"); });
}

Status complete_lfm2_moe(const GgufKeys& keys, json& config) {
  config["use_expert_bias"] = has_correction(keys.content());
  RETURN_IF_ERROR(read_conv_layers(keys, config));
  return check_sigmoid_gating(keys);
}

// Which layers have a gated delta net, and the size of its value heads.
Status complete_delta_nets(const GgufKeys& keys, json& config) {
  for (const char* key :
       {"linear_conv_kernel_dim", "linear_key_head_dim", "linear_num_key_heads", "linear_num_value_heads"})
    if (!config.contains(key))
      return malformed(fmt::format("{}: does not say {} of its gated delta nets", keys.file(), key));
  ASSIGN_OR_RETURN(const auto inner, keys.integer("ssm.inner_size"));
  const int64_t heads = config["linear_num_value_heads"];
  if (!inner || heads < 1 || *inner % heads != 0)
    return malformed(fmt::format("{}: {} must be a multiple of {}, {}", keys.file(),
                                 keys.name("ssm.inner_size"), keys.name("ssm.time_step_rank"), heads));
  config["linear_value_head_dim"] = *inner / heads;
  const std::string name = keys.name("attention.recurrent_layers");
  const GgufArray* recurrent = gguf_array(keys.content(), name);
  if (recurrent == nullptr) return {};
  const auto layers = config["num_hidden_layers"].get<uint64_t>();
  if (!recurrent->texts.empty() || recurrent->count < layers)
    return malformed(
        fmt::format("{}: {} must be a list of {} flags, one for each layer", keys.file(), name, layers));
  json types = json::array();
  for (uint64_t i = 0; i < layers; ++i)
    types.push_back(recurrent->number(i) != 0 ? "linear_attention" : "full_attention");
  config["layer_types"] = types;
  return {};
}

Status complete_deepseek(const GgufKeys& keys, json& config) {
  // Files that were made for attention over the latent say by other keys how large a head is without it.
  ASSIGN_OR_RETURN(const auto own_key, keys.integer("attention.key_length"));
  ASSIGN_OR_RETURN(const auto own_value, keys.integer("attention.value_length"));
  ASSIGN_OR_RETURN(const auto split_key, keys.integer("attention.key_length_mla"));
  ASSIGN_OR_RETURN(const auto split_value, keys.integer("attention.value_length_mla"));
  const auto key = split_key ? split_key : own_key, value = split_value ? split_value : own_value;
  if (!key || !value || !config.contains("qk_rope_head_dim"))
    return malformed(keys.file() + ": does not say the sizes of its heads");
  config["qk_nope_head_dim"] = *key - config["qk_rope_head_dim"].get<int64_t>();
  config["v_head_dim"] = *value;
  config.erase("head_dim");
  config.erase("num_key_value_heads");
  ASSIGN_OR_RETURN(const auto q_rank, keys.integer("attention.q_lora_rank"));
  config["q_lora_rank"] = q_rank ? json(*q_rank) : json();
  const bool is_v3 = config["architectures"][0] == "DeepseekV3ForCausalLM";
  ASSIGN_OR_RETURN(const auto groups, keys.integer("expert_group_count"));
  ASSIGN_OR_RETURN(const auto chosen, keys.integer("expert_group_used_count"));
  config["n_group"] = groups.value_or(1);
  config["topk_group"] = chosen.value_or(1);
  config["topk_method"] = is_v3 ? "noaux_tc" : groups.value_or(1) > 1 ? "group_limited_greedy" : "greedy";
  ASSIGN_OR_RETURN(const auto renormalised, keys.flag("expert_weights_norm"));
  config["norm_topk_prob"] = renormalised.value_or(false);
  return {};
}

constexpr std::array kArchitectures = std::to_array<GgufArchitecture>({
    {.name = "llama", .family = ModelFamily::kLlama, .pairs_rows = true},
    {.name = "llama",
     .family = ModelFamily::kMixtral,
     .has_experts = true,
     .pairs_rows = true,
     .keys = kMixtralGguf},
    {.name = "qwen2", .family = ModelFamily::kQwen2},
    {.name = "qwen3", .family = ModelFamily::kQwen3},
    {.name = "gemma2",
     .family = ModelFamily::kGemma2,
     .norms_hold_one = true,
     .keys = kGemma2Gguf,
     .more_keys = kWindowPattern,
     .complete = complete_gemma2},
    {.name = "gemma3",
     .family = ModelFamily::kGemma3,
     .norms_hold_one = true,
     .keys = kGemma3Gguf,
     .more_keys = kGemma3More,
     .complete = complete_gemma3},
    {.name = "gemma4",
     .family = ModelFamily::kGemma4,
     .kv_heads_by_layer = true,
     .mlps_by_layer = true,
     .keys = kGemma4Gguf,
     .more_keys = kGemma4More,
     .complete = complete_varied_layers},
    {.name = "phi3", .family = ModelFamily::kPhi3, .more_keys = kPhi3More, .complete = complete_phi3},
    {.name = "olmo2", .family = ModelFamily::kOlmo2},
    {.name = "olmo2",
     .family = ModelFamily::kOlmo3,
     .keys = kOlmo3Gguf,
     .more_keys = kOlmo3More,
     .complete = complete_olmo3},
    {.name = "seed_oss", .family = ModelFamily::kSeedOss},
    {.name = "granite", .family = ModelFamily::kGranite, .pairs_rows = true, .keys = kGraniteGguf},
    {.name = "smollm3", .family = ModelFamily::kSmolLm3, .pairs_rows = true},
    {.name = "qwen2moe",
     .family = ModelFamily::kQwen2Moe,
     .has_experts = true,
     .keys = kQwenMoeGguf,
     .complete = complete_qwen2_moe},
    {.name = "qwen3moe",
     .family = ModelFamily::kQwen3Moe,
     .has_experts = true,
     .keys = kQwenMoeGguf,
     .complete = complete_qwen3_moe},
    {.name = "gpt-oss",
     .family = ModelFamily::kGptOss,
     .has_experts = true,
     .keys = kGptOssGguf,
     .more_keys = kWindowPattern,
     .complete = complete_gpt_oss},
    {.name = "glm4moe",
     .family = ModelFamily::kGlm4Moe,
     .has_experts = true,
     .keys = kGlm4MoeGguf,
     .more_keys = kGatingMore,
     .complete = complete_glm4_moe},
    {.name = "minimax-m2",
     .family = ModelFamily::kMinimaxM2,
     .has_experts = true,
     .keys = kMinimaxM2Gguf,
     .more_keys = kGatingMore,
     .complete = complete_minimax_m2},
    {.name = "ernie4_5", .family = ModelFamily::kErnie45},
    {.name = "ernie4_5-moe",
     .family = ModelFamily::kErnie45Moe,
     .has_experts = true,
     .keys = kErnie45MoeGguf,
     .more_keys = kErnie45MoeMore,
     .complete = complete_ernie45_moe},
    {.name = "hunyuan-dense", .family = ModelFamily::kHunyuanDense},
    {.name = "lfm2",
     .family = ModelFamily::kLfm2,
     .kv_heads_by_layer = true,
     .keys = kLfm2Gguf,
     .complete = complete_lfm2},
    {.name = "lfm2moe",
     .family = ModelFamily::kLfm2Moe,
     .has_experts = true,
     .kv_heads_by_layer = true,
     .keys = kLfm2MoeGguf,
     .more_keys = kGatingMore,
     .complete = complete_lfm2_moe},
    {.name = "qwen3next",
     .family = ModelFamily::kQwen3Next,
     .has_experts = true,
     .norms_hold_one = true,
     .keys = kQwen35MoeGguf,
     .more_keys = kDeltaNetMore,
     .complete = complete_delta_nets},
    {.name = "qwen35",
     .family = ModelFamily::kQwen35,
     .norms_hold_one = true,
     .values_in_turns = true,
     .keys = kQwen35Gguf,
     .more_keys = kDeltaNetMore,
     .complete = complete_delta_nets},
    {.name = "qwen35moe",
     .family = ModelFamily::kQwen35Moe,
     .has_experts = true,
     .norms_hold_one = true,
     .values_in_turns = true,
     .keys = kQwen35MoeGguf,
     .more_keys = kDeltaNetMore,
     .complete = complete_delta_nets},
    {.name = "deepseek2",
     .family = ModelFamily::kDeepseekV2,
     .has_experts = true,
     .keys = kDeepseekGguf,
     .more_keys = kDeepseekMore,
     .complete = complete_deepseek},
    {.name = "deepseek2",
     .family = ModelFamily::kDeepseekV3,
     .has_experts = true,
     .keys = kDeepseekGguf,
     .more_keys = kDeepseekMore,
     .complete = complete_deepseek},
});

std::string supported_names() {
  std::string out;
  std::string_view before;
  for (const GgufArchitecture& known : kArchitectures) {
    if (known.name != before) out += (out.empty() ? "" : ", ") + std::string(known.name);
    before = known.name;
  }
  return out;
}

}  // namespace

std::span<const GgufArchitecture> gguf_architectures() { return kArchitectures; }

Result<const GgufArchitecture*> gguf_architecture_of(const GgufContent& content, const std::string& name) {
  ASSIGN_OR_RETURN(const std::optional<std::string> found, gguf_text(content, "general.architecture", name));
  if (!found) return malformed(name + ": has no general.architecture");
  const GgufKeys keys(content, name, *found);
  ASSIGN_OR_RETURN(const auto experts, keys.integer("expert_count"));
  // DeepSeek-V3 scores experts by sigmoids (2), and corrects them for the choice.
  ASSIGN_OR_RETURN(const auto gating, keys.integer("expert_gating_func"));
  const bool is_v3 = gating ? *gating == kSigmoidGating : has_correction(content);
  const auto window = keys.integer("attention.sliding_window");  // of OLMo 3, not of OLMo 2
  const bool slides = window.ok() && window->value_or(0) > 0;
  for (const GgufArchitecture& known : kArchitectures) {
    if (known.name != *found) continue;
    if (known.name == "llama" && known.has_experts != (experts.value_or(0) > 0)) continue;
    if (known.name == "olmo2" && (known.family == ModelFamily::kOlmo3) != slides) continue;
    if (known.name == "deepseek2" && (known.family == ModelFamily::kDeepseekV3) != is_v3) continue;
    return &known;
  }
  return unsupported(fmt::format("{}: general.architecture is {}; supported are {}", name, printable(*found),
                                 supported_names()));
}

}  // namespace outrider
