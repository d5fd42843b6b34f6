#include "model_files/model_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "base/bfloat16.h"
#include "base/json_file.h"
#include "base/json_text.h"
#include "model_files/config_keys.h"
#include "model_files/config_limits.h"
#include "model_files/delta_net_config.h"
#include "model_files/family.h"
#include "model_files/gguf_model.h"
#include "model_files/gguf_parts.h"
#include "model_files/head_mark.h"
#include "model_files/latent_config.h"
#include "model_files/layer_config.h"
#include "model_files/layer_kinds.h"
#include "model_files/quantization_config.h"
#include "model_files/rope_config.h"
#include "model_files/short_conv_config.h"
#include "model_files/varied_layers_config.h"
#include "model_files/wrapper_config.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr JsonLimits kConfigLimits{.max_bytes = size_t{8} << 20, .max_depth = 16};

// "architectures" decides; "model_type" stands in where it is missing, and must not contradict it.
Result<ModelFamily> read_family(const JsonObject& config) {
  ASSIGN_OR_RETURN(const std::string type, config.string_or("model_type", ""));
  const FamilyTraits* found = nullptr;
  if (const json* list = config.find("architectures")) {
    if (!list->is_array() || list->size() != 1 || !list->front().is_string())
      return config.wrong("architectures", "must be a list of one name");
    const std::string name = list->front().get<std::string>();
    found = find_architecture(name);
    if (found == nullptr)
      return config.refused("architectures", "is " + name + "; supported are " + supported_architectures());
    if (!type.empty() && !found->is_type(type))
      return config.wrong("model_type", fmt::format("is {}, but \"architectures\" says {}", type, name));
  } else {
    if (type.empty()) return config.wrong("architectures", "is missing, and so is \"model_type\"");
    found = find_model_type(type);
    if (found == nullptr)
      return config.refused("model_type", "is " + type + "; supported are " + supported_model_types());
  }
  return found->family;
}

Status read_sizes(const JsonObject& config, const FamilyTraits& traits, ModelConfig& out) {
  ASSIGN_OR_RETURN(out.hidden_size, config.integer("hidden_size", {1, kMaxWidth}));
  ASSIGN_OR_RETURN(out.num_layers, config.integer("num_hidden_layers", {1, kMaxLayers}));
  ASSIGN_OR_RETURN(out.num_heads, config.integer("num_attention_heads", {1, kMaxWidth}));
  // A class without dense MLPs has no key for their size.
  const bool has_dense_size = traits.delta_nets != DeltaNets::kSplit || traits.experts == nullptr;
  ASSIGN_OR_RETURN(
      out.intermediate_size,
      traits.reads("block_auto_adjust_ff_dim")
          ? read_adjusted_intermediate_size(config)
          : config.integer(has_dense_size ? "intermediate_size" : "moe_intermediate_size", {1, kMaxWidth}));
  ASSIGN_OR_RETURN(out.vocab_size, config.integer("vocab_size", {1, kMaxVocab}));
  ASSIGN_OR_RETURN(out.max_position_embeddings,
                   config.integer("max_position_embeddings", {1, kMaxPositions}));
  ASSIGN_OR_RETURN(out.num_kv_heads, config.integer_or("num_key_value_heads", out.num_heads, {1, kMaxWidth}));
  if (out.num_heads % out.num_kv_heads != 0)
    return config.wrong(
        "num_key_value_heads",
        fmt::format("is {}, which does not divide the {} attention heads", out.num_kv_heads, out.num_heads));
  ASSIGN_OR_RETURN(out.rms_norm_eps,
                   config.number_or(std::string(traits.epsilon_key), traits.defaults.norm_epsilon, 1e-30, 1));
  return {};
}

Status read_head_dim(const JsonObject& config, const FamilyTraits& traits, ModelConfig& out) {
  if (config.has("head_dim")) {
    ASSIGN_OR_RETURN(out.head_dim, config.integer("head_dim", {2, 4096}));
  } else if (traits.defaults.head_dim > 0) {
    out.head_dim = traits.defaults.head_dim;  // such a class never derives it
  } else {
    if (out.hidden_size % out.num_heads != 0)
      return config.wrong("hidden_size",
                          fmt::format("is {}, not a multiple of the {} attention heads, and there "
                                      "is no \"head_dim\"",
                                      out.hidden_size, out.num_heads));
    out.head_dim = out.hidden_size / out.num_heads;
  }
  if (out.head_dim % 2 != 0 || out.head_dim > 4096)
    return config.wrong("head_dim", fmt::format("is {}; must be even and at most 4096", out.head_dim));
  if (out.q_size() > kMaxWidth)
    return config.wrong("num_attention_heads",
                        fmt::format("times head_dim is {}; at most {}", out.q_size(), kMaxWidth));
  return {};
}

Status read_biases(const JsonObject& config, const FamilyTraits& traits, ModelConfig& out) {
  ASSIGN_OR_RETURN(const bool attention_bias,
                   config.boolean_or("attention_bias", traits.defaults.attention_bias));
  ASSIGN_OR_RETURN(const bool mlp_bias, config.boolean_or("mlp_bias", false));
  if (attention_bias &&
      (traits.attention_bias == AttentionBias::kNone || traits.attention_bias == AttentionBias::kUseBias))
    return config.refused("attention_bias",
                          fmt::format("is true, but the attention of {} has no bias", traits.architecture));
  if (mlp_bias && !traits.reads_mlp_bias)
    return config.refused("mlp_bias",
                          fmt::format("is true, but the MLP of {} has no bias", traits.architecture));
  out.o_bias = attention_bias && traits.attention_bias == AttentionBias::kQkvoByKey;
  out.qkv_bias = out.o_bias || traits.attention_bias == AttentionBias::kQkv;
  if (traits.attention_bias == AttentionBias::kByTwoKeys) {
    out.qkv_bias = attention_bias;
    ASSIGN_OR_RETURN(out.o_bias, config.boolean_or("attention_out_bias", false));
  }
  if (traits.attention_bias == AttentionBias::kQkvByKey) {
    ASSIGN_OR_RETURN(out.qkv_bias, config.boolean_or("qkv_bias", true));
  }
  out.mlp_bias = mlp_bias;
  if (traits.attention_bias == AttentionBias::kUseBias) {
    ASSIGN_OR_RETURN(out.qkv_bias, config.boolean_or("use_bias", false));
    out.o_bias = out.mlp_bias = out.qkv_bias;
  }
  const bool has_other_key = traits.reads("tie_embedding") && config.has("tie_embedding");
  ASSIGN_OR_RETURN(
      out.tie_word_embeddings,
      config.boolean_or(has_other_key ? "tie_embedding" : "tie_word_embeddings", traits.defaults.tied));
  return {};
}

bool is_null(const JsonObject& config, std::string_view key) {
  const auto found = config.members().find(key);
  return found != config.members().end() && found->is_null();
}

Status read_scales(const JsonObject& config, const FamilyTraits& traits, ModelConfig& out) {
  constexpr double kLeast = 1e-9, kMost = 1e9;
  for (const ScaleKey& scale : traits.scales) {
    const std::string key(scale.key);
    const bool is_cap = scale.kind == ScaleKey::Kind::kCap;
    double value = 0;
    if (!is_cap || !is_null(config, key)) {
      if (is_cap && scale.fallback == 0 && !config.has(key)) continue;
      ASSIGN_OR_RETURN(value, config.number_or(key, scale.fallback, kLeast, kMost));
    }
    out.scales.*scale.to = scale.kind == ScaleKey::Kind::kInverseRoot ? 1 / std::sqrt(value) : value;
  }
  if (out.latent)
    out.scales.attention = out.rope.of_scores / std::sqrt(static_cast<double>(out.latent->query_dim()));
  // Classes round these factors to the type of the weights.
  const auto root_of = [&](int64_t size) {
    const auto root = static_cast<float>(std::sqrt(static_cast<double>(size)));
    return static_cast<double>(out.torch_dtype == Dtype::kBF16 ? to_float(to_bf16(root)) : root);
  };
  if (traits.embedding_times_root) out.scales.embedding = root_of(out.hidden_size);
  if (out.layer_input_size > 0) out.scales.layer_inputs = root_of(out.layer_input_size);
  return {};
}

Status read_activation(const JsonObject& config, const FamilyTraits& traits, ModelConfig& out) {
  const bool is_silu = traits.activation != Activation::kGeluTanh;
  const std::string key(traits.activation_key), expected = is_silu ? "silu" : "gelu_pytorch_tanh";
  ASSIGN_OR_RETURN(const std::string name, config.string_or(key, expected));
  if (name != expected && !(is_silu && name == "swish"))
    return config.refused(
        key, fmt::format("is {}; only {} is supported for {}", name, expected, traits.architecture));
  // Gemma's class reads another key than most; its files may have both.
  if (const json* other = config.find("hidden_act");
      key != "hidden_act" && other != nullptr && *other != "gelu" && *other != expected)
    return config.refused("hidden_act", "is " + json_text(*other).substr(0, 100) + "; only " + expected +
                                            " is supported for " + std::string(traits.architecture));
  out.activation = traits.activation;
  return {};
}

// Refuses keys that mark a mixture of experts if the family is a dense one.
Status refuse_experts(const JsonObject& config, const FamilyTraits& traits) {
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size"})
    if (const json* value = config.find(key);
        value != nullptr && *value != 0 && !(*value == 1 && traits.reads(key)))
      return config.refused(key, "marks a mixture of experts, which this architecture is not");
  return {};
}

Status read_experts(const JsonObject& config, const FamilyTraits& traits, ModelConfig& out) {
  if (traits.experts == nullptr) return refuse_experts(config, traits);
  const ExpertNames& names = *traits.experts;
  if (names.beside_mlp) {
    ASSIGN_OR_RETURN(const bool has_experts, config.boolean_or("enable_moe_block", false));
    if (!has_experts) return {};  // whatever other keys say
  }
  constexpr int64_t kMaxExperts = 4096;
  ExpertConfig experts;
  // Versions of transformers differ in which of two names they write.
  const std::string usual(names.count_key);
  const std::string other = usual == "num_experts" ? "num_local_experts" : "num_experts";
  if (!config.has(usual) && !config.has(other)) return config.wrong(usual, "is missing");
  const std::string& key = config.has(usual) ? usual : other;
  ASSIGN_OR_RETURN(experts.count, config.integer(key, {1, kMaxExperts}));
  if (const json* value = config.find(other); value != nullptr && *value != experts.count)
    return config.wrong(other, "contradicts \"" + usual + "\"");
  ASSIGN_OR_RETURN(experts.chosen, config.integer(std::string(names.chosen_key), {1, experts.count}));
  ASSIGN_OR_RETURN(experts.intermediate_size, config.integer(std::string(names.size_key), {1, kMaxWidth}));
  if (const json* same = config.find("experts_per_token"); same != nullptr && *same != experts.chosen)
    return config.wrong("experts_per_token", "contradicts \"num_experts_per_tok\"");
  experts.biases = names.biases;
  experts.beside_mlp = names.beside_mlp;
  if (names.routing == Routing::kCorrectedAlone) {
    RETURN_IF_ERROR(read_ungrouped_routing(config, experts));
  } else if (names.routing == Routing::kSigmoids) {
    RETURN_IF_ERROR(read_sigmoid_routing(config, experts));
  } else if (names.routing == Routing::kCorrectedShares) {
    RETURN_IF_ERROR(read_shares_routing(config, experts));
  } else if (names.routing != Routing::kLargest) {
    RETURN_IF_ERROR(read_grouped_routing(config, names, experts));
  }
  if (names.routing != Routing::kLargest) {
    out.experts = experts;
    return {};
  }
  if (names.has_shared) {
    ASSIGN_OR_RETURN(experts.shared_intermediate_size,
                     config.integer("shared_expert_intermediate_size", {1, kMaxWidth}));
  }
  if (!names.always_renormalises) {
    ASSIGN_OR_RETURN(experts.renormalise, config.boolean_or("norm_topk_prob", names.renormalises));
  }
  out.experts = experts;
  return {};
}

// Accepts an integer, a list of integers, or nothing.
Status add_eos(const JsonObject& object, ModelConfig& out) {
  const json* value = object.find("eos_token_id");
  if (value == nullptr) return {};
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& id : list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(out.vocab_size))
      return object.wrong("eos_token_id",
                          fmt::format("must hold ids below the vocabulary's size, {}", out.vocab_size));
    const TokenId token(id.get<int32_t>());
    if (std::find(out.eos.begin(), out.eos.end(), token) == out.eos.end()) out.eos.push_back(token);
  }
  return {};
}

Status read_special_ids(const JsonObject& config, const std::filesystem::path& directory, ModelConfig& out) {
  RETURN_IF_ERROR(add_eos(config, out));
  if (config.has("bos_token_id")) {
    ASSIGN_OR_RETURN(const int64_t bos, config.integer("bos_token_id", {0, out.vocab_size - 1}));
    out.bos = TokenId(static_cast<int32_t>(bos));
  }
  if (is_gguf_path(directory)) return {};
  const std::filesystem::path path = directory / "generation_config.json";
  const Result<json> generation = read_json_file(path, kConfigLimits);
  if (!generation.ok())
    return generation.status().code() == StatusCode::kNotFound ? Status() : generation.status();
  ASSIGN_OR_RETURN(const JsonObject object, JsonObject::view(*generation, path.string()));
  return add_eos(object, out);
}

Status read_dtype(const JsonObject& config, ModelConfig& out) {
  const std::string key = config.has("dtype") ? "dtype" : "torch_dtype";  // renamed in transformers 4.56
  ASSIGN_OR_RETURN(const std::string name, config.string_or(key, ""));
  out.torch_dtype = dtype_from_torch(name);
  if (!name.empty() && !out.torch_dtype)
    return config.refused(key, "is " + name + "; supported are float32, bfloat16 and float16");
  return {};
}

struct ConfigJson {
  json root;
  bool norms_hold_one = false;   // the file's norms are 1 + weight already
  bool values_in_turns = false;  // DeltaNetConfig::in_turns
  std::string where = "config.json";
};

Result<ConfigJson> read_config_json(const std::filesystem::path& directory) {
  if (is_gguf_path(directory)) {
    ASSIGN_OR_RETURN(const GgufParts parts, open_gguf(directory));
    ASSIGN_OR_RETURN(json root, gguf_config(parts.content, directory.string()));
    return ConfigJson{.root = std::move(root),
                      .norms_hold_one = gguf_norms_hold_one(parts.content),
                      .values_in_turns = gguf_values_in_turns(parts.content)};
  }
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error))
    return not_found(directory.string() +
                     ": no such directory; give the directory of a Hugging Face model, or a .gguf file");
  Result<json> root = read_json_file(directory / "config.json", kConfigLimits);
  if (!root.ok() && root.status().code() == StatusCode::kNotFound &&
      !std::filesystem::is_symlink(directory / "config.json", error))
    return not_found((directory / "config.json").string() +
                     ": no such file; give the directory of a Hugging Face model, or a .gguf file");
  if (!root.ok()) return root.status();
  ASSIGN_OR_RETURN(const JsonObject whole, JsonObject::view(*root, (directory / "config.json").string()));
  ASSIGN_OR_RETURN(std::optional<json> text, text_model_config(whole));
  if (text) return ConfigJson{.root = std::move(*text), .where = "config.json: text_config"};
  return ConfigJson{.root = std::move(root).value()};
}

}  // namespace

Result<ModelFamily> family_of(const JsonObject& config, ModelFamily fallback) {
  ASSIGN_OR_RETURN(const std::string type, config.string_or("model_type", ""));
  if (type.empty()) return fallback;
  if (const FamilyTraits* found = find_model_type(type)) return found->family;
  return config.refused("model_type", "is " + type + "; supported are " + supported_model_types());
}

ModelConfig ModelConfig::sized_for(const LayerKind& kind) const {
  ModelConfig sized = *this;
  if (kind.head_dim != 0) sized.head_dim = kind.head_dim;
  if (kind.kv_heads != 0) sized.num_kv_heads = kind.kv_heads;
  if (kind.intermediate_size != 0) sized.intermediate_size = kind.intermediate_size;
  return sized;
}

std::string beyond_plain_layers(const ModelConfig& c) {
  if (c.experts) return "a mixture of experts";
  if (c.latent) return "latent attention";
  if (c.conv_taps > 0) return "layers with a short convolution";
  if (c.delta_net) return "layers with a gated delta net";
  if (c.attention_gate) return "attention with a gate";
  if (c.layer_input_size > 0) return "an embedding for each layer";
  if (c.values_normed) return "norms of values";
  for (const LayerKind& layer : c.layers) {
    if (layer.window > 0) return "layers that see a window of the text";
    if (layer.rope == LayerRope::kLocal) return "layers with a rotation of their own";
    if (layer.rope == LayerRope::kNone) return "layers without rotation";
  }
  if (c.norm_place != NormPlace::kBefore) return "norms behind attention and MLP";
  if (c.norm_adds_one) return "norms that multiply by 1 + weight";
  if (c.qk_norm == QkNorm::kWhole) return "a norm over all heads of q and k";
  if (c.activation != Activation::kSilu) return "another activation than silu";
  if (c.attention_sinks) return "attention sinks";
  if (c.scales != ModelScales{}) return "factors or caps on embeddings, residuals, scores or logits";
  if (c.rope.dims != 0 && c.rope.dims != c.head_dim) return "partly rotated heads";
  if (c.rope.amplitude != 1) return "a rotation with an amplitude";
  if (c.rope.interleaved) return "a rotation of neighbouring dimensions";
  if (c.norms_rotated) return "norms of q and k behind the rotation";
  return "";
}

Result<ModelConfig> read_layer_config(const JsonObject& config, ModelFamily family,
                                      std::span<const std::string_view> also) {
  const FamilyTraits& traits = traits_of(family);
  ModelConfig out;
  out.family = family;
  out.norm_place = traits.norm_place;
  out.norm_adds_one = traits.norm_adds_one;
  out.qk_norm = traits.qk_norm;
  out.norms_rotated = traits.norms_rotated;
  out.attention_sinks = traits.attention_sinks;
  out.attention_gate = traits.attention_gate;
  if (traits.qk_norm_by_key) {
    ASSIGN_OR_RETURN(const bool norms, config.boolean_or("use_qk_norm", false));
    if (!norms) out.qk_norm = QkNorm::kNone;
  }
  RETURN_IF_ERROR(read_activation(config, traits, out));
  RETURN_IF_ERROR(read_experts(config, traits, out));
  RETURN_IF_ERROR(check_config_keys(config, out.family, also));
  RETURN_IF_ERROR(read_sizes(config, traits, out));
  RETURN_IF_ERROR(traits.latent_attention ? read_latent_config(config, out)
                                          : read_head_dim(config, traits, out));
  RETURN_IF_ERROR(read_biases(config, traits, out));
  RETURN_IF_ERROR(read_rope(config, traits, out));
  RETURN_IF_ERROR(traits.short_convolutions ? read_short_convolutions(config, traits, out)
                                            : read_layer_kinds(config, traits, out));
  if (traits.delta_nets != DeltaNets::kNone) RETURN_IF_ERROR(read_delta_nets(config, out));
  if (traits.varied_layers) RETURN_IF_ERROR(read_varied_layers(config, traits, out));
  RETURN_IF_ERROR(read_dtype(config, out));
  RETURN_IF_ERROR(read_scales(config, traits, out));
  ASSIGN_OR_RETURN(out.quantization, read_quantization_config(config));
  return out;
}

namespace {

Result<ModelConfig> config_of(const ConfigJson& read, const std::filesystem::path& model_directory) {
  const std::filesystem::path file =
      is_gguf_path(model_directory) ? model_directory : model_directory / read.where;
  ASSIGN_OR_RETURN(const JsonObject config, JsonObject::view(read.root, file.string()));
  if (const HeadMark mark = mark_of_head(config); !mark.drafter.empty())
    return config.refused(mark.key,
                          fmt::format("is of a head, which is no language model of its own: it drafts for "
                                      "one with --draft-model DIR --drafter {}",
                                      mark.drafter));
  ASSIGN_OR_RETURN(const ModelFamily family, read_family(config));
  ASSIGN_OR_RETURN(ModelConfig out, read_layer_config(config, family));
  if (read.norms_hold_one) out.norm_adds_one = false;
  if (out.delta_net) out.delta_net->in_turns = read.values_in_turns;
  RETURN_IF_ERROR(read_special_ids(config, model_directory, out));
  return out;
}

}  // namespace

Result<ModelConfig> read_model_config(const std::filesystem::path& model_directory) {
  ASSIGN_OR_RETURN(const ConfigJson read, read_config_json(model_directory));
  auto config = config_of(read, model_directory);
  if (config.ok() || !is_gguf_path(model_directory)) return config;
  ASSIGN_OR_RETURN(const GgufParts parts, open_gguf(model_directory));
  return in_words_of_gguf(config.status(), parts.content, model_directory.string());
}

}  // namespace outrider
