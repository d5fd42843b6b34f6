// The keys of a GGUF file in the words of config.json.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>

#include "base/printable.h"
#include "model_files/config_limits.h"
#include "model_files/family.h"
#include "model_files/gguf_architecture.h"
#include "model_files/gguf_ends.h"
#include "model_files/gguf_model.h"
#include "model_files/gguf_shapes.h"

namespace outrider {
namespace {

using nlohmann::json;

class ConfigOfGguf {
 public:
  ConfigOfGguf(const GgufContent& content, const std::string& name, const GgufArchitecture& architecture)
      : content_(content),
        name_(name),
        architecture_(architecture),
        family_(traits_of(architecture.family)),
        keys_(content, name, architecture.name) {}

  Result<json> read();

 private:
  Status copy_integer(const char* key, const char* to, bool required);
  Status copy_number(const char* key, const char* to);
  Status copy_own_keys();
  Status refuse_other_keys() const;
  Status read_head_sizes();
  Status read_rope_scaling();
  Status read_rope_factors();
  Status read_long_rope_factors();
  Status read_yarn(json& rope);
  Status read_layers();
  Status read_biases();
  Status read_ends();
  // The `count` F32 numbers of a tensor; nothing if the file has no such tensor.
  Result<std::optional<std::vector<double>>> numbers_of(const char* tensor, int64_t count) const;
  std::string key(std::string_view rest) const { return keys_.name(rest); }
  int64_t turning_dims() const {
    return turning_dims_ ? *turning_dims_ : config_.value("head_dim", int64_t{0});
  }

  const GgufContent& content_;
  const std::string& name_;
  const GgufArchitecture& architecture_;
  const FamilyTraits& family_;
  const GgufKeys keys_;
  std::optional<int64_t> turning_dims_;
  json config_;
};

Status ConfigOfGguf::copy_integer(const char* from, const char* to, bool required) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> value, keys_.integer(from));
  if (value) config_[to] = *value;
  if (!value && required) return malformed(fmt::format("{}: has no {}", name_, key(from)));
  return {};
}

Status ConfigOfGguf::copy_number(const char* from, const char* to) {
  ASSIGN_OR_RETURN(const std::optional<double> value, keys_.number(from));
  if (value) config_[to] = *value;
  return {};
}

Status ConfigOfGguf::copy_own_keys() {
  for (const GgufKey& own : architecture_.keys) {
    const std::string to(own.to);
    switch (own.kind) {
      case GgufKey::Kind::kInteger: {
        ASSIGN_OR_RETURN(const auto value, keys_.integer(own.key));
        if (value) config_[to] = *value;
        break;
      }
      case GgufKey::Kind::kNumber: {
        ASSIGN_OR_RETURN(const auto value, keys_.number(own.key));
        if (value) config_[to] = *value;
        break;
      }
      case GgufKey::Kind::kFlag: {
        ASSIGN_OR_RETURN(const auto value, keys_.flag(own.key));
        if (value) config_[to] = *value;
        break;
      }
    }
  }
  return {};
}

// Refuses every key of the architecture that is not read here.
Status ConfigOfGguf::refuse_other_keys() const {
  constexpr auto kReadKeys = std::to_array<std::string_view>({"block_count",
                                                              "context_length",
                                                              "embedding_length",
                                                              "feed_forward_length",
                                                              "nextn_predict_layers",
                                                              "attention.head_count",
                                                              "attention.head_count_kv",
                                                              "attention.key_length",
                                                              "attention.value_length",
                                                              "attention.layer_norm_rms_epsilon",
                                                              "rope.freq_base",
                                                              "rope.dimension_count",
                                                              "rope.scale_linear",
                                                              "rope.scaling.type",
                                                              "rope.scaling.factor",
                                                              "rope.scaling.original_context_length",
                                                              "rope.scaling.attn_factor",
                                                              "rope.scaling.finetuned",
                                                              "rope.scaling.yarn_attn_factor",
                                                              "rope.scaling.yarn_beta_fast",
                                                              "rope.scaling.yarn_beta_slow",
                                                              "rope.scaling.yarn_log_multiplier",
                                                              "vocab_size"});
  // With these values they change nothing.
  const auto is_neutral = [](std::string_view rest, const GgufValue& value) {
    const auto* number = std::get_if<uint64_t>(&value);
    const auto* real = std::get_if<double>(&value);
    const auto* flag = std::get_if<bool>(&value);
    if (rest == "attention.causal") return flag && *flag;
    if (rest == "rope.scaling.yarn_ext_factor") return real && (*real == 1 || *real == -1);
    return (rest == "expert_count" || rest == "expert_used_count" || rest == "attention.sliding_window") &&
           number && *number == 0;
  };
  const auto is_own = [&](std::string_view rest) {
    const auto& own = architecture_.keys;
    const auto& more = architecture_.more_keys;
    return std::any_of(own.begin(), own.end(), [&](const GgufKey& known) { return known.key == rest; }) ||
           std::find(more.begin(), more.end(), rest) != more.end();
  };
  const std::string prefix = key("");
  for (const auto& [name, value] : content_.values) {
    if (!name.starts_with(prefix)) continue;
    const std::string_view rest = std::string_view(name).substr(prefix.size());
    if (std::find(kReadKeys.begin(), kReadKeys.end(), rest) != kReadKeys.end() || is_own(rest) ||
        is_neutral(rest, value))
      continue;
    return unsupported(fmt::format("{}: {} is not supported, and may change what the model computes", name_,
                                   printable(name)));
  }
  return {};
}

Status ConfigOfGguf::read_head_sizes() {
  ASSIGN_OR_RETURN(const std::optional<int64_t> keys, keys_.integer("attention.key_length"));
  ASSIGN_OR_RETURN(const std::optional<int64_t> values, keys_.integer("attention.value_length"));
  ASSIGN_OR_RETURN(turning_dims_, keys_.integer("rope.dimension_count"));
  if (family_.latent_attention) return {};
  const int64_t heads = config_["num_attention_heads"];
  const int64_t size = keys ? *keys : heads > 0 ? config_["hidden_size"].get<int64_t>() / heads : 0;
  const std::string source =
      keys ? key("attention.key_length") : key("embedding_length") + " / " + key("attention.head_count");
  if (values.value_or(size) != size)
    return unsupported(fmt::format("{}: {} is {}, but {} is {}; only values as wide as keys are supported",
                                   name_, key("attention.value_length"), *values, source, size));
  config_["head_dim"] = size;
  if (turning_dims_.value_or(size) == size) return {};
  if (!family_.partial_rotation)
    return unsupported(fmt::format("{}: {} is {}, but {} is {}; only whole heads are rotated", name_,
                                   key("rope.dimension_count"), *turning_dims_, source, size));
  config_["partial_rotary_factor"] = static_cast<double>(*turning_dims_) / static_cast<double>(size);
  return {};
}

Result<std::optional<std::vector<double>>> ConfigOfGguf::numbers_of(const char* tensor_name,
                                                                    int64_t count) const {
  const TensorInfo* tensor = content_.tensor(tensor_name);
  if (!tensor) return std::optional<std::vector<double>>();
  if (tensor->dtype != Dtype::kF32 || tensor->shape != std::vector<int64_t>{count})
    return malformed(fmt::format("{}: {} is not {} numbers in F32", name_, tensor_name, count));
  constexpr uint32_t kFloat = 6;
  const GgufArray numbers{
      .type = kFloat, .texts = {}, .numbers = tensor->data, .count = static_cast<uint64_t>(count)};
  std::vector<double> out;
  for (uint64_t i = 0; i < numbers.count; ++i) out.push_back(numbers.number(i));
  return std::optional(std::move(out));
}

// The divisor that Llama 3's RoPE scaling applies to a frequency. Names as in Hugging Face.
double llama3_divisor(double frequency, double factor) {
  constexpr double kLow = 1, kHigh = 4, kTrained = 8192;
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < kTrained / kHigh) return 1;
  if (wavelength > kTrained / kLow) return factor;
  const double smooth = (kTrained / wavelength - kLow) / (kHigh - kLow);
  return 1 / ((1 - smooth) / factor + smooth);
}

// Files hold the divisors of frequencies themselves. Those of Llama 3.1 and later are recognised, so that
// the rotation has the bits of the model's directory; others are taken as they are.
Status ConfigOfGguf::read_rope_factors() {
  if (family_.varied_layers) return {};  // GgufArchitecture::complete reads them
  const int64_t pairs = turning_dims() / 2;
  ASSIGN_OR_RETURN(const auto divisors, numbers_of(kGgufRopeFactors, pairs));
  if (!divisors) return {};
  const double theta = config_.value("rope_theta", 10000.0), factor = divisors->back();
  bool is_llama3 = factor >= 1, is_one = true;
  for (size_t i = 0; i < divisors->size(); ++i) {
    const double frequency = std::pow(theta, -static_cast<double>(i) / static_cast<double>(pairs));
    const double expected = llama3_divisor(frequency, factor);
    is_llama3 &= std::abs((*divisors)[i] - expected) <= 1e-4 * expected;
    is_one &= (*divisors)[i] == 1;
  }
  if (is_one) return {};
  if (config_.contains("rope_scaling"))
    return unsupported(fmt::format("{}: {} and {} both scale the rotation", name_, kGgufRopeFactors,
                                   key("rope.scaling.type")));
  if (is_llama3)
    config_["rope_scaling"] = {{"rope_type", "llama3"},
                               {"factor", factor},
                               {"low_freq_factor", 1.0},
                               {"high_freq_factor", 4.0},
                               {"original_max_position_embeddings", 8192}};
  else
    config_["rope_scaling"] = {{"rope_type", "longrope"},
                               {"short_factor", *divisors},
                               {"long_factor", *divisors},
                               {"attention_factor", 1.0},
                               {"original_max_position_embeddings", config_["max_position_embeddings"]}};
  return {};
}

// Phi-3's two lists.
Status ConfigOfGguf::read_long_rope_factors() {
  const int64_t pairs = turning_dims() / 2;
  ASSIGN_OR_RETURN(const auto within, numbers_of(kGgufShortFactors, pairs));
  ASSIGN_OR_RETURN(const auto beyond, numbers_of(kGgufLongFactors, pairs));
  if (!within && !beyond) return {};
  if (!within || !beyond)
    return malformed(
        fmt::format("{}: has only one of {} and {}", name_, kGgufShortFactors, kGgufLongFactors));
  ASSIGN_OR_RETURN(const auto trained, keys_.integer("rope.scaling.original_context_length"));
  ASSIGN_OR_RETURN(const auto amplitude, keys_.number("rope.scaling.attn_factor"));
  config_["rope_scaling"] = {
      {"rope_type", "longrope"},
      {"short_factor", *within},
      {"long_factor", *beyond},
      {"original_max_position_embeddings", trained ? json(*trained) : config_["max_position_embeddings"]}};
  if (amplitude) config_["rope_scaling"]["attention_factor"] = *amplitude;
  return {};
}

Status ConfigOfGguf::read_yarn(json& rope) {
  for (const auto& [from, to] : {std::pair{"rope.scaling.yarn_beta_fast", "beta_fast"},
                                 {"rope.scaling.yarn_beta_slow", "beta_slow"},
                                 {"rope.scaling.yarn_attn_factor", "attention_factor"}}) {
    ASSIGN_OR_RETURN(const auto value, keys_.number(from));
    if (value) rope[to] = *value;
  }
  ASSIGN_OR_RETURN(const auto trained, keys_.integer("rope.scaling.original_context_length"));
  if (trained) rope["original_max_position_embeddings"] = *trained;
  ASSIGN_OR_RETURN(const auto multiplier, keys_.number("rope.scaling.yarn_log_multiplier"));
  if (!multiplier || *multiplier == 0) return {};
  if (!family_.latent_attention)
    return unsupported(fmt::format("{}: {} is {}; it is understood for DeepSeek alone", name_,
                                   key("rope.scaling.yarn_log_multiplier"), *multiplier));
  // A tenth of "mscale_all_dim", in fp32; "mscale" is the same in every model that has been published.
  const double all_dim = std::round(*multiplier * 1e7) / 1e6;
  rope["mscale"] = all_dim;
  rope["mscale_all_dim"] = all_dim;
  return {};
}

Status ConfigOfGguf::read_rope_scaling() {
  ASSIGN_OR_RETURN(const auto type, keys_.text("rope.scaling.type"));
  ASSIGN_OR_RETURN(auto factor, keys_.number("rope.scaling.factor"));
  ASSIGN_OR_RETURN(const auto old_factor, keys_.number("rope.scale_linear"));
  ASSIGN_OR_RETURN(const auto amplitude, keys_.number("rope.scaling.attn_factor"));
  if (!factor) factor = old_factor;
  const std::string kind = type.value_or(old_factor && *old_factor != 1 ? "linear" : "none");
  if (kind != "none" && kind != "linear" && kind != "yarn" && kind != "longrope")
    return unsupported(fmt::format("{}: {} is {}; supported are none, linear, yarn and longrope", name_,
                                   key("rope.scaling.type"), printable(kind)));
  if ((kind == "linear" || kind == "yarn") && !factor)
    return malformed(fmt::format("{}: has no {}", name_, key("rope.scaling.factor")));
  if (kind == "linear" && *factor != 1)
    config_["rope_scaling"] = {{"rope_type", "linear"}, {"factor", *factor}};
  if (kind == "yarn") {
    json rope{{"rope_type", "yarn"}, {"factor", *factor}};
    RETURN_IF_ERROR(read_yarn(rope));
    config_["rope_scaling"] = rope;
  }
  RETURN_IF_ERROR(read_long_rope_factors());
  const bool is_long = config_.contains("rope_scaling") && config_["rope_scaling"]["rope_type"] == "longrope";
  if (!is_long && amplitude.value_or(1) != 1)
    return unsupported(fmt::format("{}: {} is {} without {}", name_, key("rope.scaling.attn_factor"),
                                   *amplitude, kGgufShortFactors));
  return read_rope_factors();
}

// Layers behind the last are of modules of multi-token prediction, and count as blocks.
Status ConfigOfGguf::read_layers() {
  RETURN_IF_ERROR(copy_integer("block_count", "num_hidden_layers", true));
  const int64_t layers = config_["num_hidden_layers"];
  if (layers < 1 || layers > kMaxLayers)  // others read lists of one number for each layer
    return malformed(
        fmt::format("{}: {} is {}; must be 1 to {}", name_, key("block_count"), layers, kMaxLayers));
  ASSIGN_OR_RETURN(const auto modules, keys_.integer("nextn_predict_layers"));
  if (modules.value_or(0) == 0) return {};
  if (*modules < 0 || *modules >= layers)
    return malformed(fmt::format("{}: {} is {}, but {} is {}", name_, key("nextn_predict_layers"), *modules,
                                 key("block_count"), layers));
  config_["num_hidden_layers"] = layers - *modules;
  config_["num_nextn_predict_layers"] = *modules;
  return {};
}

Status ConfigOfGguf::read_biases() {
  constexpr std::string_view kOutBias = "attention_out_bias";
  const auto has = [&](const char* tensor) { return content_.tensor(tensor) != nullptr; };
  const bool q = has("blk.0.attn_q.bias") || has("blk.0.attn_qkv.bias"), o = has("blk.0.attn_output.bias");
  const bool mlp = has("blk.0.ffn_gate.bias") || has("blk.0.ffn_up.bias");
  const bool all_by_key = family_.attention_bias == AttentionBias::kQkvoByKey;
  const bool all_and_mlp = family_.attention_bias == AttentionBias::kUseBias;
  const bool by_two_keys = family_.attention_bias == AttentionBias::kByTwoKeys;
  const bool always =
      family_.attention_bias == AttentionBias::kQkv || family_.attention_bias == AttentionBias::kQkvByKey;
  const bool o_by_key = family_.reads(kOutBias);
  if (all_and_mlp) {
    if (q == o && q == mlp) {
      config_["use_bias"] = q;
      return {};
    }
    return unsupported(fmt::format("{}: has biases of some projections only; {} files have all or none",
                                   name_, architecture_.name));
  }
  if ((q && !all_by_key && !always && !by_two_keys) || (o && !all_by_key && !o_by_key) ||
      (all_by_key && q != o) || (mlp && !family_.reads_mlp_bias))
    return unsupported(fmt::format("{}: has biases that {} files do not have", name_, architecture_.name));
  if (all_by_key || by_two_keys) config_["attention_bias"] = q;
  if (o_by_key) config_[std::string(kOutBias)] = o;
  if (family_.reads_mlp_bias && mlp) config_["mlp_bias"] = true;
  if (family_.attention_bias == AttentionBias::kQkvByKey) config_["qkv_bias"] = q;
  return {};
}

Status ConfigOfGguf::read_ends() {
  ASSIGN_OR_RETURN(const std::vector<int64_t> ends, gguf_ends(content_, name_));
  for (const int64_t id : ends) config_["eos_token_id"].push_back(static_cast<uint64_t>(id));
  ASSIGN_OR_RETURN(const std::optional<int64_t> bos,
                   gguf_integer(content_, "tokenizer.ggml.bos_token_id", name_));
  if (bos) config_["bos_token_id"] = *bos;
  return {};
}

Result<json> ConfigOfGguf::read() {
  config_ = {
      {"architectures", {family_.architecture}},
      {"model_type", family_.model_type},
      {family_.activation_key, family_.activation == Activation::kGeluTanh ? "gelu_pytorch_tanh" : "silu"}};
  RETURN_IF_ERROR(refuse_other_keys());
  RETURN_IF_ERROR(check_gguf_sizes(keys_));
  RETURN_IF_ERROR(copy_integer("embedding_length", "hidden_size", true));
  RETURN_IF_ERROR(read_layers());
  if (!architecture_.mlps_by_layer)
    RETURN_IF_ERROR(copy_integer("feed_forward_length", "intermediate_size", !architecture_.has_experts));
  RETURN_IF_ERROR(copy_integer("attention.head_count", "num_attention_heads", true));
  if (!architecture_.kv_heads_by_layer)
    RETURN_IF_ERROR(copy_integer("attention.head_count_kv", "num_key_value_heads", false));
  RETURN_IF_ERROR(copy_integer("context_length", "max_position_embeddings", true));
  RETURN_IF_ERROR(copy_number("attention.layer_norm_rms_epsilon", "rms_norm_eps"));
  RETURN_IF_ERROR(copy_number("rope.freq_base", "rope_theta"));
  RETURN_IF_ERROR(copy_own_keys());
  if (!config_.contains("intermediate_size") && config_.contains("moe_intermediate_size"))
    config_["intermediate_size"] = config_["moe_intermediate_size"];
  RETURN_IF_ERROR(read_head_sizes());
  const bool heads_are_alike = !family_.latent_attention && !family_.varied_layers;
  if (heads_are_alike) RETURN_IF_ERROR(check_gguf_heads(keys_, config_));
  RETURN_IF_ERROR(read_rope_scaling());
  RETURN_IF_ERROR(read_biases());
  RETURN_IF_ERROR(read_ends());
  const TensorInfo* embedding = content_.tensor("token_embd.weight");
  if (!embedding || embedding->shape.size() != 2)
    return malformed(name_ + ": has no matrix token_embd.weight");
  config_["vocab_size"] = embedding->shape[0];
  config_["tie_word_embeddings"] = content_.tensor("output.weight") == nullptr;
  if (architecture_.complete) RETURN_IF_ERROR(architecture_.complete(keys_, config_));
  return std::move(config_);
}

// The keys that are those of config.json for every architecture, further ones are in its table.
constexpr GgufKey kCommonKeys[] = {{"embedding_length", "hidden_size"},
                                   {"block_count", "num_hidden_layers"},
                                   {"feed_forward_length", "intermediate_size"},
                                   {"attention.head_count", "num_attention_heads"},
                                   {"attention.head_count_kv", "num_key_value_heads"},
                                   {"attention.key_length", "head_dim"},
                                   {"attention.sliding_window", "sliding_window"},
                                   {"context_length", "max_position_embeddings"},
                                   {"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
                                   {"rope.freq_base", "rope_theta"}};

// Replaces `word` where it is no part of a longer word.
void replace_word(std::string& text, std::string_view word, std::string_view by) {
  const auto is_of_word = [&](size_t at) {
    return at < text.size() && (std::isalnum(static_cast<unsigned char>(text[at])) || text[at] == '_' ||
                                text[at] == '.' || text[at] == '/');
  };
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at)) {
    const bool is_whole = (at == 0 || !is_of_word(at - 1)) && !is_of_word(at + word.size());
    if (is_whole) text.replace(at, word.size(), by);
    at += is_whole ? by.size() : word.size();
  }
}

}  // namespace

Status in_words_of_gguf(const Status& status, const GgufContent& content, const std::string& name) {
  const auto architecture = gguf_architecture_of(content, name);
  if (status.ok() || !architecture.ok()) return status;
  const GgufKeys keys(content, name, (*architecture)->name);
  std::string text = status.message();
  // The file's name stands in front, and may have any words.
  const size_t begin = text.starts_with(name) ? name.size() : 0;
  std::string words = text.substr(begin);
  const auto translate = [&](std::span<const GgufKey> list) {
    for (const GgufKey& key : list) replace_word(words, key.to, keys.name(key.key));
  };
  translate((*architecture)->keys);
  translate(kCommonKeys);
  return {status.code(), text.substr(0, begin) + words};
}

Result<json> gguf_config(const GgufContent& content, const std::string& name) {
  ASSIGN_OR_RETURN(const GgufArchitecture* architecture, gguf_architecture_of(content, name));
  return ConfigOfGguf(content, name, *architecture).read();
}

}  // namespace outrider
