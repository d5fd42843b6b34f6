#include "lab/synth/shape.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/nearest.h"
#include "lab/synth/vocabulary.h"

namespace outrider {
namespace {

struct Preset {
  const char* name;
  SynthShape shape;
};

constexpr SynthShape llama2(SynthShape shape) {
  shape.vocab = 32000;
  shape.max_positions = 2048;
  return shape;
}

constexpr SynthShape llama3(SynthShape shape, bool tied) {
  shape.vocab = 128256;
  shape.max_positions = 131072;
  shape.rope_theta = 500000;
  shape.llama3_rope = true;
  shape.tied = tied;
  return shape;
}

constexpr SynthShape mixture(SynthShape shape, int64_t experts, int64_t experts_per_token) {
  shape.experts = experts;
  shape.experts_per_token = experts_per_token;
  return shape;
}

constexpr SynthShape gpt_oss(SynthShape shape) {
  shape.gpt_oss = true;
  shape.rope_theta = 150000;
  shape.max_positions = 131072;
  return shape;
}

constexpr SynthShape deepseek(SynthShape shape) {
  shape.kv_heads = shape.heads;
  shape.max_positions = 163840;
  return shape;
}

// Presets. `tiny` is for tests; 1.1b is TinyLlama's shape, 1b to 8b are those of Llama 3.2 and 3.1; moe has
// 0.5 billion parameters, 0.1 billion active for each token. gpt-oss and deepseek are about as large, in the
// layers of their families. v2-lite has the sizes of DeepSeek-V2-Lite in layers of DeepSeek-V3's kind, which
// may have a module of multi-token prediction.
constexpr SynthShape kTiny{
    .hidden = 128, .layers = 6, .heads = 4, .kv_heads = 2, .ffn = 320, .vocab = 1024, .max_positions = 512};
constexpr std::array kPresets = {
    Preset{"tiny", kTiny},
    Preset{"moe",
           mixture(llama2({.hidden = 1024, .layers = 8, .heads = 16, .kv_heads = 4, .ffn = 512}), 32, 4)},
    Preset{"gpt-oss",
           gpt_oss(mixture(
               llama2({.hidden = 1024, .layers = 8, .heads = 16, .kv_heads = 2, .head_dim = 64, .ffn = 512}),
               32, 4))},
    Preset{"deepseek", deepseek(mixture({.hidden = 1024,
                                         .layers = 8,
                                         .heads = 16,
                                         .head_dim = 64,
                                         .ffn = 512,
                                         .kv_rank = 256,
                                         .q_rank = 384,
                                         .dense_layers = 1,
                                         .dense_ffn = 2816,
                                         .shared_experts = 1,
                                         .groups = 4,
                                         .groups_chosen = 2,
                                         .vocab = 32000},
                                        32, 4))},
    Preset{"100m", llama2({.hidden = 768, .layers = 12, .heads = 12, .kv_heads = 4, .ffn = 2048})},
    Preset{"1.1b", llama2({.hidden = 2048, .layers = 22, .heads = 32, .kv_heads = 4, .ffn = 5632})},
    Preset{"1b", llama3({.hidden = 2048, .layers = 16, .heads = 32, .kv_heads = 8, .ffn = 8192}, true)},
    Preset{"3b", llama3({.hidden = 3072, .layers = 28, .heads = 24, .kv_heads = 8, .ffn = 8192}, true)},
    Preset{"v2-lite", deepseek(mixture({.hidden = 2048,
                                        .layers = 27,
                                        .heads = 16,
                                        .head_dim = 128,
                                        .ffn = 1408,
                                        .kv_rank = 512,
                                        .dense_layers = 1,
                                        .dense_ffn = 10944,
                                        .shared_experts = 2,
                                        .vocab = 102400},
                                       64, 6))},
    Preset{"8b", llama3({.hidden = 4096, .layers = 32, .heads = 32, .kv_heads = 8, .ffn = 14336}, false)},
};

Status check_range(const char* flag, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return invalid_argument(fmt::format("{} {}: must be {} to {}", flag, value, low, high));
}

// Checks the latent attention of a shape whose other sizes are valid.
Status check_latent(SynthShape& s) {
  if (s.gpt_oss)
    return invalid_argument(
        "--kv-rank: the layers of gpt-oss have no latent attention; choose another --shape");
  RETURN_IF_ERROR(check_range("--kv-rank", s.kv_rank, 2, 4096));
  if (s.q_rank != 0) RETURN_IF_ERROR(check_range("--q-rank", s.q_rank, 2, 65536));
  if (s.head_dim % 4 != 0)
    return invalid_argument(fmt::format(
        "--head-dim {}: must be a multiple of 4; half as many dimensions of a query turn", s.head_dim));
  for (const auto& [flag, size] : {std::pair{"--kv-rank", s.kv_rank}, {"--q-rank", s.q_rank}})
    if (size % 2 != 0) return invalid_argument(fmt::format("{} {}: must be even", flag, size));
  if (s.tied) return invalid_argument("--tied: DeepSeek's head is no embedding; drop it, or --kv-rank");
  s.shared_experts = std::max<int64_t>(s.shared_experts, 1);
  RETURN_IF_ERROR(check_range("--dense-layers", s.dense_layers, 0, s.layers - 1));
  if (s.dense_ffn == 0) s.dense_ffn = s.ffn * (s.experts_per_token + s.shared_experts);
  // Other numbers of experts than the preset's may not go into its groups.
  if (s.experts % s.groups != 0 || s.experts / s.groups < 2 ||
      s.groups_chosen * (s.experts / s.groups) < s.experts_per_token)
    s.groups = s.groups_chosen = 1;
  return {};
}

}  // namespace

std::vector<std::string> synth_shape_names() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

Result<SynthShape> synth_shape(const std::string& name) {
  for (const Preset& preset : kPresets)
    if (name == preset.name) return preset.shape;
  const auto names = synth_shape_names();
  const std::string_view nearest = nearest_name(names, name);
  return invalid_argument(fmt::format("--shape {}: there are {}{}", name, fmt::join(names, ", "),
                                      nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest)));
}

Status check_synth_shape(SynthShape& s) {
  RETURN_IF_ERROR(check_range("--hidden", s.hidden, 16, 65536));
  RETURN_IF_ERROR(check_range("--layers", s.layers, 2, 1024));
  RETURN_IF_ERROR(check_range("--heads", s.heads, 1, 1024));
  if (s.is_latent()) s.kv_heads = s.heads;
  RETURN_IF_ERROR(check_range("--kv-heads", s.kv_heads, 1, s.heads));
  RETURN_IF_ERROR(check_range("--ffn", s.ffn, 16, 1 << 20));
  if (s.experts != 0) {
    RETURN_IF_ERROR(check_range("--experts", s.experts, 2, 1024));
    RETURN_IF_ERROR(check_range("--experts-per-token", s.experts_per_token, 1, s.experts));
  }
  RETURN_IF_ERROR(check_range("--vocab", s.vocab, kMinSynthVocabulary, kMaxSynthVocabulary));
  RETURN_IF_ERROR(check_range("--max-positions", s.max_positions, 128, 1 << 20));
  if (s.heads % s.kv_heads != 0)
    return invalid_argument(fmt::format("--kv-heads {}: must divide --heads {}", s.kv_heads, s.heads));
  if (s.head_dim == 0 && s.hidden % s.heads != 0)
    return invalid_argument(fmt::format(
        "--hidden {} is no multiple of --heads {}; choose another, or give --head-dim", s.hidden, s.heads));
  if (s.head_dim == 0) s.head_dim = s.hidden / s.heads;
  if (s.head_dim % 2 != 0)
    return invalid_argument(fmt::format("--head-dim {}: must be even, for the rotation", s.head_dim));
  if ((s.gpt_oss || s.is_latent()) && s.experts == 0)
    return invalid_argument(
        fmt::format("--experts 0: the layers of {} have experts; choose another --shape{}",
                    s.gpt_oss ? "gpt-oss" : "DeepSeek", s.gpt_oss ? "" : ", or --kv-rank 0"));
  if (s.is_latent()) RETURN_IF_ERROR(check_latent(s));
  return check_range("--head-dim", s.head_dim, 8, 1024);
}

nlohmann::json synth_config(const SynthShape& s, int64_t layers) {
  nlohmann::json config{{"architectures", {"LlamaForCausalLM"}},
                        {"model_type", "llama"},
                        {"hidden_size", s.hidden},
                        {"num_hidden_layers", layers},
                        {"num_attention_heads", s.heads},
                        {"num_key_value_heads", s.kv_heads},
                        {"head_dim", s.head_dim},
                        {"intermediate_size", s.ffn},
                        {"vocab_size", s.vocab},
                        {"max_position_embeddings", s.max_positions},
                        {"rms_norm_eps", 1e-5},
                        {"rope_theta", s.rope_theta},
                        {"rope_scaling", nullptr},
                        {"hidden_act", "silu"},
                        {"attention_bias", false},
                        {"mlp_bias", false},
                        {"tie_word_embeddings", s.tied},
                        {"bos_token_id", kSynthBos},
                        {"eos_token_id", kSynthEos},
                        {"torch_dtype", "bfloat16"}};
  if (s.experts > 0 && !s.is_latent())
    config.update({{"architectures", {"MixtralForCausalLM"}},
                   {"model_type", "mixtral"},
                   {"num_local_experts", s.experts},
                   {"num_experts_per_tok", s.experts_per_token},
                   {"sliding_window", nullptr}});
  if (s.gpt_oss)
    config.update({{"architectures", {"GptOssForCausalLM"}},
                   {"model_type", "gpt_oss"},
                   {"attention_bias", true},
                   {"sliding_window", 128},
                   {"swiglu_limit", 7.0},
                   {"rope_scaling",
                    {{"rope_type", "yarn"},
                     {"factor", 32.0},
                     {"beta_fast", 32.0},
                     {"beta_slow", 1.0},
                     {"truncate", false},
                     {"original_max_position_embeddings", 4096}}}});
  if (s.is_latent()) {
    config.erase("head_dim");
    config.update({{"architectures", {"DeepseekV3ForCausalLM"}},
                   {"model_type", "deepseek_v3"},
                   {"intermediate_size", s.dense_ffn},
                   {"moe_intermediate_size", s.ffn},
                   {"n_routed_experts", s.experts},
                   {"num_experts_per_tok", s.experts_per_token},
                   {"n_shared_experts", s.shared_experts},
                   {"first_k_dense_replace", s.dense_layers},
                   {"n_group", s.groups},
                   {"topk_group", s.groups_chosen},
                   {"norm_topk_prob", true},
                   {"routed_scaling_factor", 1.0},
                   {"scoring_func", "sigmoid"},
                   {"topk_method", "noaux_tc"},
                   {"q_lora_rank", s.q_rank > 0 ? nlohmann::json(s.q_rank) : nlohmann::json()},
                   {"kv_lora_rank", s.kv_rank},
                   {"qk_nope_head_dim", s.head_dim},
                   {"qk_rope_head_dim", s.rope_dim()},
                   {"v_head_dim", s.head_dim}});
    config.erase("mlp_bias");
  }
  if (s.llama3_rope)
    config["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", 32.0},
                              {"low_freq_factor", 1.0},
                              {"high_freq_factor", 4.0},
                              {"original_max_position_embeddings", 8192}};
  return config;
}

SynthShape plain_layers(const SynthShape& s) {
  SynthShape plain = s;
  plain.experts = plain.kv_rank = 0;
  plain.gpt_oss = false;
  if (s.is_latent()) plain.ffn = s.dense_ffn;
  return plain;
}

nlohmann::json synth_head_config(const SynthShape& s, const SynthHead& head) {
  if (head.kind == SynthHead::Kind::kMedusa)
    return {{"medusa_num_heads", head.branches}, {"medusa_num_layers", 1}};
  if (head.kind == SynthHead::Kind::kHydra)
    return {{"grounded_heads", true},
            {"hidden_state_offset", 0},
            {"hydra_head_arch", "mlp"},
            {"hydra_num_heads", head.branches},
            {"hydra_num_layers", 1}};
  if (head.kind == SynthHead::Kind::kMtp && s.is_latent()) {  // as it stands in its target's files
    nlohmann::json config = synth_config(s, s.layers);
    config["num_nextn_predict_layers"] = 1;
    return config;
  }
  nlohmann::json config = synth_config(plain_layers(s), head.layers);
  config["tie_word_embeddings"] = false;
  if (head.kind == SynthHead::Kind::kMtp) {
    config["architectures"] = {"MiMoMTPModel"};
    config["model_type"] = "mimo";
    config["num_nextn_predict_layers"] = 1;
    return config;
  }
  if (head.has_output(s)) config["draft_vocab_size"] = head.draft_vocab;
  const int64_t last = s.layers - 1;
  const std::array inputs{last / 3, 2 * last / 3, last};
  if (head.is_block()) {
    config["architectures"] = {"DFlashDraftModel"};
    config["block_size"] = head.block_size;
    config["num_target_layers"] = s.layers;
    config["dflash_config"] = {{"target_layer_ids", {inputs[0] - 1, inputs[1] - 1, inputs[2] - 1}},
                               {"mask_token_id", s.vocab - 1}};
    return config;
  }
  config["architectures"] = {"LlamaForCausalLMEagle3"};
  config["target_hidden_size"] = s.hidden;
  config["eagle_aux_hidden_state_layer_ids"] = inputs;
  return config;
}

}  // namespace outrider
