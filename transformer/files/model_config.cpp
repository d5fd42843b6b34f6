#include "transformer/files/model_config.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "base/json_text.h"
#include "transformer/files/config_keys.h"
#include "transformer/files/json_file.h"
#include "transformer/files/layer_config.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr JsonLimits kConfigLimits{.max_bytes = size_t{8} << 20, .max_depth = 16};

// Generous beyond any published model, and small enough that no product of two of them leaves 64 bits.
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxPositions = int64_t{1} << 30;

struct FamilyRow {
  ModelFamily family;
  std::string_view model_type;
  std::string_view architecture;
};
constexpr std::array kFamilies = {
    FamilyRow{ModelFamily::kLlama, "llama", "LlamaForCausalLM"},
    FamilyRow{ModelFamily::kMistral, "mistral", "MistralForCausalLM"},
    FamilyRow{ModelFamily::kQwen2, "qwen2", "Qwen2ForCausalLM"},
    FamilyRow{ModelFamily::kQwen3, "qwen3", "Qwen3ForCausalLM"},
};

// "architectures" decides; "model_type" stands in where it is missing, and must not contradict it.
Result<ModelFamily> read_family(const JsonObject& config) {
  constexpr const char* kSupported =
      "; supported are LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM";
  ASSIGN_OR_RETURN(const std::string type, config.string_or("model_type", ""));
  const FamilyRow* found = nullptr;
  if (const json* list = config.find("architectures")) {
    if (!list->is_array() || list->size() != 1 || !list->front().is_string())
      return config.wrong("architectures", "must be a list of one name");
    const std::string name = list->front().get<std::string>();
    for (const FamilyRow& row : kFamilies)
      if (row.architecture == name) found = &row;
    if (found == nullptr) return config.refused("architectures", "is " + name + kSupported);
    if (!type.empty() && type != found->model_type)
      return config.wrong("model_type", fmt::format("is {}, but \"architectures\" says {}", type, name));
  } else {
    if (type.empty()) return config.wrong("architectures", "is missing, and so is \"model_type\"");
    for (const FamilyRow& row : kFamilies)
      if (row.model_type == type) found = &row;
    if (found == nullptr) return config.refused("model_type", "is " + type + kSupported);
  }
  return found->family;
}

Status read_sizes(const JsonObject& config, ModelConfig& out) {
  ASSIGN_OR_RETURN(out.hidden_size, config.integer("hidden_size", {1, kMaxWidth}));
  ASSIGN_OR_RETURN(out.num_layers, config.integer("num_hidden_layers", {1, kMaxLayers}));
  ASSIGN_OR_RETURN(out.num_heads, config.integer("num_attention_heads", {1, kMaxWidth}));
  ASSIGN_OR_RETURN(out.intermediate_size, config.integer("intermediate_size", {1, kMaxWidth}));
  ASSIGN_OR_RETURN(out.vocab_size, config.integer("vocab_size", {1, kMaxVocab}));
  ASSIGN_OR_RETURN(out.max_position_embeddings,
                   config.integer("max_position_embeddings", {1, kMaxPositions}));
  ASSIGN_OR_RETURN(out.num_kv_heads, config.integer_or("num_key_value_heads", out.num_heads, {1, kMaxWidth}));
  if (out.num_heads % out.num_kv_heads != 0)
    return config.wrong(
        "num_key_value_heads",
        fmt::format("is {}, which does not divide the {} attention heads", out.num_kv_heads, out.num_heads));
  ASSIGN_OR_RETURN(out.rms_norm_eps, config.number_or("rms_norm_eps", 1e-6, 1e-30, 1));
  return {};
}

Status read_head_dim(const JsonObject& config, ModelConfig& out) {
  if (config.has("head_dim")) {
    ASSIGN_OR_RETURN(out.head_dim, config.integer("head_dim", {2, 4096}));
  } else if (out.family == ModelFamily::kQwen3) {
    out.head_dim = 128;  // the class default: Qwen3 never derives it
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

// Which projections have a bias, and whether q and k are normalised, is fixed by the family's code in
// transformers except for Llama's and Qwen3's attention_bias (q, k, v and o together) and Llama's mlp_bias.
Status read_biases(const JsonObject& config, ModelConfig& out) {
  ASSIGN_OR_RETURN(const bool attention_bias, config.boolean_or("attention_bias", false));
  ASSIGN_OR_RETURN(const bool mlp_bias, config.boolean_or("mlp_bias", false));
  const bool is_llama = out.family == ModelFamily::kLlama;
  const bool is_qwen3 = out.family == ModelFamily::kQwen3;
  if (attention_bias && out.family == ModelFamily::kMistral)
    return config.refused("attention_bias", "is true, but Mistral's attention has no bias");
  if (mlp_bias && !is_llama)
    return config.refused("mlp_bias",
                          fmt::format("is true, but {}'s MLP has no bias", family_name(out.family)));
  out.o_bias = attention_bias && (is_llama || is_qwen3);
  out.qkv_bias = out.o_bias || out.family == ModelFamily::kQwen2;
  out.mlp_bias = mlp_bias;
  out.qk_norm = is_qwen3;
  ASSIGN_OR_RETURN(out.tie_word_embeddings, config.boolean_or("tie_word_embeddings", false));
  return {};
}

Result<Llama3RopeScaling> read_llama3_scaling(const JsonObject& rope) {
  Llama3RopeScaling out;
  ASSIGN_OR_RETURN(out.factor, rope.number("factor", 1, 1e6));
  ASSIGN_OR_RETURN(out.low_freq_factor, rope.number("low_freq_factor", 1e-6, 1e6));
  ASSIGN_OR_RETURN(out.high_freq_factor, rope.number("high_freq_factor", 1e-6, 1e6));
  ASSIGN_OR_RETURN(out.original_max_position_embeddings,
                   rope.integer("original_max_position_embeddings", {1, kMaxPositions}));
  if (out.high_freq_factor <= out.low_freq_factor)
    return rope.wrong("high_freq_factor", "must be larger than \"low_freq_factor\"");
  return out;
}

// Older files say "type", newer ones "rope_type". Nothing: neither does.
Result<std::optional<std::string>> read_rope_type(const JsonObject& rope) {
  if (!rope.has("rope_type") && !rope.has("type")) return std::optional<std::string>();
  const std::string key = rope.has("rope_type") ? "rope_type" : "type";
  ASSIGN_OR_RETURN(const std::string type, rope.string(key));
  ASSIGN_OR_RETURN(const std::string old_name, rope.string_or("type", type));
  if (old_name != type)
    return rope.wrong("type",
                      fmt::format("is {}, but \"rope_type\" is {}; keep the right one", old_name, type));
  if (type != "default" && type != "llama3")
    return rope.refused(key,
                        "is " + type +
                            "; supported are default and llama3. Where the scaling only extends the trained "
                            "context, remove it and set \"max_position_embeddings\" to the trained length");
  return std::optional(type);
}

// What the rotation does not read would be ignored silently.
Status check_rope_keys(const JsonObject& rope, const std::optional<std::string>& type,
                       const ModelConfig& out) {
  constexpr std::array kAlways = {"rope_type", "type", "rope_theta", "partial_rotary_factor"};
  constexpr std::array kLlama3 = {"factor", "low_freq_factor", "high_freq_factor",
                                  "original_max_position_embeddings"};
  for (const auto& [key, value] : rope.members().items()) {
    if (value.is_null() || std::find(kAlways.begin(), kAlways.end(), key) != kAlways.end()) continue;
    if (type == "llama3" && std::find(kLlama3.begin(), kLlama3.end(), key) != kLlama3.end()) continue;
    if (type != "llama3" && key == "factor" && value == 1) continue;
    if (type != "llama3" && key == "original_max_position_embeddings" && value == out.max_position_embeddings)
      continue;
    const std::string shown = json_text(value).substr(0, 100);
    return rope.refused(
        key, type ? fmt::format("is {}, which rope_type {} does not read; remove one of them", shown, *type)
                  : fmt::format("is {}, but there is no \"rope_type\"; add it, or remove the key", shown));
  }
  return {};
}

struct Rotation {
  std::optional<Llama3RopeScaling> scaling;
  std::optional<double> theta;
};

Status refuse_partial_rotation(const JsonObject& object) {
  ASSIGN_OR_RETURN(const double factor, object.number_or("partial_rotary_factor", 1, 0, 1));
  if (factor != 1)
    return object.refused("partial_rotary_factor",
                          fmt::format("is {}; only whole heads are rotated here", factor));
  return {};
}

// rope_scaling of older files or rope_parameters of newer ones. Nothing: it is not there, or empty.
Result<std::optional<Rotation>> read_rotation(const JsonObject& config, const std::string& key,
                                              const ModelConfig& out) {
  ASSIGN_OR_RETURN(const auto rope, config.object(key));
  if (!rope || rope->members().empty()) return std::optional<Rotation>();
  if (rope->has("full_attention") || rope->has("sliding_attention"))
    return config.refused(key, "differ by layer type; one rotation for all layers is supported");
  RETURN_IF_ERROR(refuse_partial_rotation(*rope));
  ASSIGN_OR_RETURN(const auto type, read_rope_type(*rope));
  RETURN_IF_ERROR(check_rope_keys(*rope, type, out));
  Rotation rotation;
  if (rope->has("rope_theta")) {
    ASSIGN_OR_RETURN(rotation.theta, rope->number("rope_theta", 1, 1e12));
  }
  if (type == "llama3") {
    ASSIGN_OR_RETURN(rotation.scaling, read_llama3_scaling(*rope));
  }
  return std::optional(rotation);
}

// transformers prefers the length beside the rotation to the one in it.
Status check_original_positions(const JsonObject& config, const ModelConfig& out) {
  if (!out.rope_scaling || !config.has("original_max_position_embeddings")) return {};
  ASSIGN_OR_RETURN(const int64_t beside,
                   config.integer("original_max_position_embeddings", {1, kMaxPositions}));
  const int64_t inside = out.rope_scaling->original_max_position_embeddings;
  if (beside == inside) return {};
  return config.wrong("original_max_position_embeddings",
                      fmt::format("is {}, but {} in the rotation; keep the right one", beside, inside));
}

// Older files: rope_theta and rope_scaling. Newer ones: both inside rope_parameters. Where a file has both,
// they must agree: programs differ in which one they read.
Status read_rope(const JsonObject& config, ModelConfig& out) {
  RETURN_IF_ERROR(refuse_partial_rotation(config));
  ASSIGN_OR_RETURN(out.rope_theta, config.number_or("rope_theta", 10000, 1, 1e12));
  ASSIGN_OR_RETURN(const auto older, read_rotation(config, "rope_scaling", out));
  ASSIGN_OR_RETURN(const auto newer, read_rotation(config, "rope_parameters", out));
  if (older && newer && older->scaling != newer->scaling)
    return config.wrong("rope_scaling", "and \"rope_parameters\" say different things; remove the wrong one");
  for (const auto& rotation : {older, newer}) {
    if (!rotation || !rotation->theta) continue;
    if (config.has("rope_theta") && out.rope_theta != *rotation->theta)
      return config.wrong("rope_theta",
                          fmt::format("is {}, but {} beside the rotation's type; keep the right one",
                                      out.rope_theta, *rotation->theta));
    out.rope_theta = *rotation->theta;
  }
  if (older || newer) out.rope_scaling = older ? older->scaling : newer->scaling;
  return check_original_positions(config, out);
}

// Whether layer_types declares a layer that sees only a window. Nothing: there is no such key.
Result<std::optional<bool>> read_layer_types(const JsonObject& config, const ModelConfig& out) {
  const json* types = config.find("layer_types");
  if (types == nullptr) return std::optional<bool>();
  if (!types->is_array()) return config.wrong("layer_types", "must be a list");
  bool slides = false;
  for (const json& type : *types) {
    if (type == "sliding_attention")
      slides = true;
    else if (type != "full_attention")
      return config.refused("layer_types",
                            "has " + json_text(type).substr(0, 100) + "; only full_attention is supported");
  }
  if (types->size() != static_cast<size_t>(out.num_layers))
    return config.wrong("layer_types",
                        fmt::format("has {} entries for {} layers", types->size(), out.num_layers));
  return std::optional(slides);
}

// Whether some layer is declared to see only a window.
Result<bool> has_sliding_layer(const JsonObject& config, const ModelConfig& out) {
  ASSIGN_OR_RETURN(const std::optional<bool> declared, read_layer_types(config, out));
  if (out.family == ModelFamily::kMistral) return true;  // every layer, if there is a window at all
  if (declared) return *declared;
  if (out.family == ModelFamily::kLlama) return config.has("sliding_window");  // other programs may read it
  ASSIGN_OR_RETURN(const bool use, config.boolean_or("use_sliding_window", false));
  ASSIGN_OR_RETURN(const int64_t full_layers, config.integer_or("max_window_layers", 28, {0, kMaxLayers}));
  return use && full_layers < out.num_layers;
}

// A window that is never shorter than the context changes nothing.
Status refuse_sliding_window(const JsonObject& config, const ModelConfig& out, bool has_null_window) {
  ASSIGN_OR_RETURN(const bool slides, has_sliding_layer(config, out));
  if (!slides || has_null_window) return {};
  // 4096 is the default of the Mistral and Qwen classes where the key is missing.
  ASSIGN_OR_RETURN(const int64_t window, config.integer_or("sliding_window", 4096, {1, kMaxPositions}));
  if (window >= out.max_position_embeddings) return {};
  if (out.family == ModelFamily::kLlama)
    return config.refused("sliding_window",
                          fmt::format("is {}, which LlamaForCausalLM does not read; remove it", window));
  return config.refused(
      "sliding_window",
      fmt::format("is {} tokens of {}; sliding windows are not supported. To use the model within its "
                  "window, set \"max_position_embeddings\" to {}",
                  window, out.max_position_embeddings, window));
}

Status refuse_other_arithmetic(const JsonObject& config) {
  if (const json* quantization = config.find("quantization_config")) {
    const std::string method = quantization->is_object()
                                   ? json_text(quantization->value("quant_method", json("?")))
                                   : json_text(*quantization);
    if (method != "\"outrider\"")  // ours (quantized_file.h): the tensors themselves say the rest
      return config.refused("quantization_config", "has quant_method " + method.substr(0, 100) +
                                                       "; use the model's bf16, fp16 or fp32 weights");
  }
  ASSIGN_OR_RETURN(const std::string activation, config.string_or("hidden_act", "silu"));
  if (activation != "silu" && activation != "swish")
    return config.refused("hidden_act", "is " + activation + "; only silu is supported");
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size"})
    if (const json* value = config.find(key); value != nullptr && *value != 0)
      return config.refused(key, "marks a mixture of experts; only dense models are supported");
  return {};
}

// An integer, a list of them, or nothing.
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

Result<json> read_config_json(const std::filesystem::path& directory) {
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error))
    return not_found(directory.string() + ": no such directory; give the directory of a Hugging Face model");
  Result<json> root = read_json_file(directory / "config.json", kConfigLimits);
  if (!root.ok() && root.status().code() == StatusCode::kNotFound)
    return not_found((directory / "config.json").string() +
                     ": no such file; give the directory of a Hugging Face model (GGUF files are not read)");
  return root;
}

}  // namespace

std::string_view family_name(ModelFamily family) { return kFamilies[static_cast<size_t>(family)].model_type; }
std::string_view architecture_name(ModelFamily family) {
  return kFamilies[static_cast<size_t>(family)].architecture;
}

Result<ModelFamily> family_of(const JsonObject& config, ModelFamily fallback) {
  ASSIGN_OR_RETURN(const std::string type, config.string_or("model_type", ""));
  if (type.empty()) return fallback;
  for (const FamilyRow& row : kFamilies)
    if (row.model_type == type) return row.family;
  return config.refused("model_type", "is " + type + "; supported are llama, mistral, qwen2 and qwen3");
}

Result<ModelConfig> read_layer_config(const JsonObject& config, ModelFamily family,
                                      std::span<const std::string_view> also) {
  ModelConfig out;
  out.family = family;
  RETURN_IF_ERROR(refuse_other_arithmetic(config));
  RETURN_IF_ERROR(check_config_keys(config, out.family, also));
  RETURN_IF_ERROR(read_sizes(config, out));
  RETURN_IF_ERROR(read_head_dim(config, out));
  RETURN_IF_ERROR(read_biases(config, out));
  RETURN_IF_ERROR(read_rope(config, out));
  const json& members = config.members();
  const bool has_null_window = members.contains("sliding_window") && members["sliding_window"].is_null();
  RETURN_IF_ERROR(refuse_sliding_window(config, out, has_null_window));
  RETURN_IF_ERROR(read_dtype(config, out));
  return out;
}

Result<ModelConfig> read_model_config(const std::filesystem::path& model_directory) {
  ASSIGN_OR_RETURN(const json root, read_config_json(model_directory));
  ASSIGN_OR_RETURN(const JsonObject config,
                   JsonObject::view(root, (model_directory / "config.json").string()));
  if (config.has("draft_vocab_size"))
    return config.refused("draft_vocab_size",
                  "marks an EAGLE-3 head, which is no language model of its own: it drafts for one with "
                  "--draft-model DIR --drafter eagle3");
  ASSIGN_OR_RETURN(const ModelFamily family, read_family(config));
  ASSIGN_OR_RETURN(ModelConfig out, read_layer_config(config, family));
  RETURN_IF_ERROR(read_special_ids(config, model_directory, out));
  return out;
}

}  // namespace outrider
