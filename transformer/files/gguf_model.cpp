#include "transformer/files/gguf_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>

#include "base/printable.h"

namespace outrider {
namespace {

using nlohmann::json;

struct GgufArchitecture {
  std::string_view name, architecture;
  bool pairs_rows;  // q and k are stored for a rotation of neighbours
};
constexpr std::array kGgufArchitectures{GgufArchitecture{"llama", "LlamaForCausalLM", true},
                                        GgufArchitecture{"qwen2", "Qwen2ForCausalLM", false},
                                        GgufArchitecture{"qwen3", "Qwen3ForCausalLM", false}};

constexpr const char* kRopeFactors = "rope_freqs.weight";

Result<const GgufArchitecture*> architecture_of(const GgufContent& content, const std::string& name) {
  ASSIGN_OR_RETURN(const std::optional<std::string> found, gguf_text(content, "general.architecture", name));
  if (!found) return malformed(name + ": has no general.architecture");
  for (const GgufArchitecture& known : kGgufArchitectures)
    if (known.name == *found) return &known;
  return unsupported(fmt::format("{}: general.architecture is {}; supported are llama, qwen2 and qwen3", name,
                                 printable(*found)));
}

class ConfigOfGguf {
 public:
  ConfigOfGguf(const GgufContent& content, const std::string& name, const GgufArchitecture& architecture)
      : content_(content), name_(name), architecture_(architecture) {}

  Result<json> read();

 private:
  Status copy_integer(const char* key, const char* to, bool required);
  Status copy_number(const char* key, const char* to);
  Status refuse_other_keys() const;
  Status read_head_sizes();
  Status read_rope_scaling();
  Status read_biases();
  Status read_ends();
  std::string key(std::string_view rest) const { return fmt::format("{}.{}", architecture_.name, rest); }

  const GgufContent& content_;
  const std::string& name_;
  const GgufArchitecture& architecture_;
  json config_;
};

Status ConfigOfGguf::copy_integer(const char* from, const char* to, bool required) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> value, gguf_integer(content_, key(from), name_));
  if (value) config_[to] = *value;
  if (!value && required) return malformed(fmt::format("{}: has no {}", name_, key(from)));
  return {};
}

Status ConfigOfGguf::copy_number(const char* from, const char* to) {
  const GgufValue* value = content_.find(key(from));
  if (!value) return {};
  const auto* number = std::get_if<double>(value);
  if (!number) return malformed(fmt::format("{}: {} is no floating-point number", name_, key(from)));
  config_[to] = *number;
  return {};
}

// Of the architecture's own keys, those that are not read here.
Status ConfigOfGguf::refuse_other_keys() const {
  constexpr auto kReadKeys = std::to_array<std::string_view>(
      {"block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
       "attention.head_count_kv", "attention.key_length", "attention.value_length",
       "attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.dimension_count", "vocab_size"});
  // With these values they change nothing.
  const auto is_neutral = [](std::string_view rest, const GgufValue& value) {
    const auto* text = std::get_if<std::string_view>(&value);
    const auto* number = std::get_if<uint64_t>(&value);
    if (rest == "rope.scaling.type") return text && *text == "none";
    return (rest == "expert_count" || rest == "expert_used_count") && number && *number == 0;
  };
  const std::string prefix = key("");
  for (const auto& [name, value] : content_.values) {
    if (name.starts_with("split.") && name == "split.count") {
      const auto* count = std::get_if<uint64_t>(&value);
      if (!count || *count > 1)
        return unsupported(
            fmt::format("{}: is one of several parts ({}); merge them into one file", name_, name));
    }
    if (!name.starts_with(prefix)) continue;
    const std::string_view rest = std::string_view(name).substr(prefix.size());
    if (std::find(kReadKeys.begin(), kReadKeys.end(), rest) != kReadKeys.end() || is_neutral(rest, value))
      continue;
    return unsupported(fmt::format("{}: {} is not supported, and may change what the model computes", name_,
                                   printable(name)));
  }
  return {};
}

Status ConfigOfGguf::read_head_sizes() {
  ASSIGN_OR_RETURN(const std::optional<int64_t> keys,
                   gguf_integer(content_, key("attention.key_length"), name_));
  ASSIGN_OR_RETURN(const std::optional<int64_t> values,
                   gguf_integer(content_, key("attention.value_length"), name_));
  ASSIGN_OR_RETURN(const std::optional<int64_t> rotated,
                   gguf_integer(content_, key("rope.dimension_count"), name_));
  const int64_t heads = config_["num_attention_heads"];
  const int64_t size = keys ? *keys : heads > 0 ? config_["hidden_size"].get<int64_t>() / heads : 0;
  if (values.value_or(size) != size)
    return unsupported(
        fmt::format("{}: {} is {}, but keys have {}", name_, key("attention.value_length"), *values, size));
  if (rotated.value_or(size) != size)
    return unsupported(fmt::format("{}: {} is {} of {}; only whole heads are rotated", name_,
                                   key("rope.dimension_count"), *rotated, size));
  config_["head_dim"] = size;
  return {};
}

// What Llama 3's rotation divides a frequency by; Hugging Face's names.
double llama3_divisor(double frequency, double factor) {
  constexpr double kLow = 1, kHigh = 4, kTrained = 8192;
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < kTrained / kHigh) return 1;
  if (wavelength > kTrained / kLow) return factor;
  const double smooth = (kTrained / wavelength - kLow) / (kHigh - kLow);
  return 1 / ((1 - smooth) / factor + smooth);
}

// Files hold the divisors themselves; they are those of Llama 3.1 and later or refused.
Status ConfigOfGguf::read_rope_scaling() {
  const TensorInfo* tensor = content_.tensor(kRopeFactors);
  if (!tensor) return {};
  const int64_t pairs = config_["head_dim"].get<int64_t>() / 2;
  if (tensor->dtype != Dtype::kF32 || tensor->shape != std::vector<int64_t>{pairs})
    return malformed(fmt::format("{}: {} is not {} numbers in F32", name_, kRopeFactors, pairs));
  const GgufArray divisors{
      .type = 6, .texts = {}, .numbers = tensor->data, .count = static_cast<uint64_t>(pairs)};
  const double theta = config_.value("rope_theta", 10000.0), factor = divisors.number(divisors.count - 1);
  for (uint64_t i = 0; i < divisors.count; ++i) {
    const double frequency = std::pow(theta, -static_cast<double>(i) / static_cast<double>(pairs));
    const double expected = llama3_divisor(frequency, factor);
    if (!(std::abs(divisors.number(i) - expected) <= 1e-4 * expected))
      return unsupported(
          fmt::format("{}: {} scales the rotation in another way than Llama 3", name_, kRopeFactors));
  }
  if (factor != 1)
    config_["rope_scaling"] = {{"rope_type", "llama3"},
                               {"factor", factor},
                               {"low_freq_factor", 1.0},
                               {"high_freq_factor", 4.0},
                               {"original_max_position_embeddings", 8192}};
  return {};
}

Status ConfigOfGguf::read_biases() {
  const bool q = content_.tensor("blk.0.attn_q.bias"), o = content_.tensor("blk.0.attn_output.bias");
  const bool mlp = content_.tensor("blk.0.ffn_gate.bias");
  const bool is_qwen2 = architecture_.name == "qwen2";
  if (mlp || o || (q && !is_qwen2))
    return unsupported(fmt::format("{}: has biases that {} files do not have", name_, architecture_.name));
  return {};
}

Status ConfigOfGguf::read_ends() {
  json eos = json::array();
  for (const char* end :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    ASSIGN_OR_RETURN(const std::optional<int64_t> id, gguf_integer(content_, end, name_));
    if (id && *id >= 0) eos.push_back(static_cast<uint64_t>(*id));
  }
  if (!eos.empty()) config_["eos_token_id"] = eos;
  ASSIGN_OR_RETURN(const std::optional<int64_t> bos,
                   gguf_integer(content_, "tokenizer.ggml.bos_token_id", name_));
  if (bos) config_["bos_token_id"] = *bos;
  return {};
}

Result<json> ConfigOfGguf::read() {
  config_ = {{"architectures", {architecture_.architecture}},
             {"model_type", architecture_.name},
             {"hidden_act", "silu"}};
  RETURN_IF_ERROR(refuse_other_keys());
  RETURN_IF_ERROR(copy_integer("embedding_length", "hidden_size", true));
  RETURN_IF_ERROR(copy_integer("block_count", "num_hidden_layers", true));
  RETURN_IF_ERROR(copy_integer("feed_forward_length", "intermediate_size", true));
  RETURN_IF_ERROR(copy_integer("attention.head_count", "num_attention_heads", true));
  RETURN_IF_ERROR(copy_integer("attention.head_count_kv", "num_key_value_heads", false));
  RETURN_IF_ERROR(copy_integer("context_length", "max_position_embeddings", true));
  RETURN_IF_ERROR(copy_number("attention.layer_norm_rms_epsilon", "rms_norm_eps"));
  RETURN_IF_ERROR(copy_number("rope.freq_base", "rope_theta"));
  RETURN_IF_ERROR(read_head_sizes());
  RETURN_IF_ERROR(read_rope_scaling());
  RETURN_IF_ERROR(read_biases());
  RETURN_IF_ERROR(read_ends());
  const TensorInfo* embedding = content_.tensor("token_embd.weight");
  if (!embedding || embedding->shape.size() != 2)
    return malformed(name_ + ": has no matrix token_embd.weight");
  config_["vocab_size"] = embedding->shape[0];
  config_["tie_word_embeddings"] = content_.tensor("output.weight") == nullptr;
  return std::move(config_);
}

// "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight"; names that are not known stay.
std::string usual_name(const std::string& name) {
  if (name == "token_embd.weight") return "model.embed_tokens.weight";
  if (name == "output_norm.weight") return "model.norm.weight";
  if (name == "output.weight") return "lm_head.weight";
  constexpr auto kParts =
      std::to_array<std::pair<std::string_view, std::string_view>>({{"attn_norm", "input_layernorm"},
                                                                    {"ffn_norm", "post_attention_layernorm"},
                                                                    {"attn_q", "self_attn.q_proj"},
                                                                    {"attn_k", "self_attn.k_proj"},
                                                                    {"attn_v", "self_attn.v_proj"},
                                                                    {"attn_output", "self_attn.o_proj"},
                                                                    {"attn_q_norm", "self_attn.q_norm"},
                                                                    {"attn_k_norm", "self_attn.k_norm"},
                                                                    {"ffn_gate", "mlp.gate_proj"},
                                                                    {"ffn_up", "mlp.up_proj"},
                                                                    {"ffn_down", "mlp.down_proj"}});
  const size_t layer_end = name.find('.', 4), part_end = name.find('.', layer_end + 1);
  if (!name.starts_with("blk.") || layer_end == name.npos || part_end == name.npos) return name;
  const std::string_view part = std::string_view(name).substr(layer_end + 1, part_end - layer_end - 1);
  for (const auto& [from, to] : kParts)
    if (from == part)
      return fmt::format("model.layers.{}.{}{}", name.substr(4, layer_end - 4), to, name.substr(part_end));
  return name;
}

}  // namespace

Result<json> gguf_config(const GgufContent& content, const std::string& name) {
  ASSIGN_OR_RETURN(const GgufArchitecture* architecture, architecture_of(content, name));
  return ConfigOfGguf(content, name, *architecture).read();
}

Result<std::vector<TensorInfo>> gguf_tensors(GgufContent content, const std::string& name) {
  ASSIGN_OR_RETURN(const json config, gguf_config(content, name));
  ASSIGN_OR_RETURN(const GgufArchitecture* architecture, architecture_of(content, name));
  std::vector<TensorInfo> out;
  for (TensorInfo& tensor : content.tensors) {
    if (tensor.name == kRopeFactors) continue;  // the config says it
    tensor.name = usual_name(tensor.name);
    const bool is_rotated =
        tensor.name.find(".q_proj.") != tensor.name.npos || tensor.name.find(".k_proj.") != tensor.name.npos;
    if (is_rotated && architecture->pairs_rows) tensor.paired_rows = config["head_dim"];
    out.push_back(std::move(tensor));
  }
  std::sort(out.begin(), out.end(), [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  const auto twice = std::adjacent_find(
      out.begin(), out.end(), [](const TensorInfo& a, const TensorInfo& b) { return a.name == b.name; });
  if (twice != out.end())
    return malformed(fmt::format("{}: two tensors are {}", name, printable(twice->name)));
  return out;
}

Result<std::optional<int64_t>> gguf_integer(const GgufContent& content, std::string_view key,
                                            const std::string& name) {
  const GgufValue* value = content.find(key);
  if (!value) return std::optional<int64_t>();
  if (const auto* number = std::get_if<int64_t>(value)) return std::optional(*number);
  const auto* number = std::get_if<uint64_t>(value);
  if (!number || *number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    return malformed(fmt::format("{}: {} is no whole number", name, key));
  return std::optional(static_cast<int64_t>(*number));
}

Result<std::optional<std::string>> gguf_text(const GgufContent& content, std::string_view key,
                                             const std::string& name) {
  const GgufValue* value = content.find(key);
  if (!value) return std::optional<std::string>();
  const auto* text = std::get_if<std::string_view>(value);
  if (!text) return malformed(fmt::format("{}: {} is no text", name, key));
  return std::optional(std::string(*text));
}

const GgufArray* gguf_array(const GgufContent& content, std::string_view key) {
  const GgufValue* value = content.find(key);
  return value ? std::get_if<GgufArray>(value) : nullptr;
}

}  // namespace outrider
