// GGUF files as llama.cpp's converter writes them: the header from tests/goldens/gguf_models
// (make_gguf_model_goldens.py), the numbers from the weights of the converted model.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model_files/gguf_architecture.h"
#include "model_files/gguf_file.h"
#include "tests/model/tensors_to_change.h"
#include "tests/support/source_dir.h"

namespace outrider::testing {

using nlohmann::json;

inline std::filesystem::path gguf_goldens() { return source_dir() / "tests/goldens/gguf_models"; }

// For every model: keys that the converter could not write, and sums of its tensors.
inline json gguf_cases() {
  static const json all = json::parse(std::ifstream(gguf_goldens() / "cases.json"));
  return all;
}

// As zlib's.
inline uint32_t crc32(std::string_view bytes) {
  uint32_t sum = ~0u;
  for (const char byte : bytes) {
    sum ^= static_cast<uint8_t>(byte);
    for (int i = 0; i < 8; ++i) sum = sum >> 1 ^ (sum & 1 ? 0xedb88320u : 0);
  }
  return ~sum;
}

// Numbers of a model's tensor, in its own shape.
struct Numbers {
  std::vector<int64_t> shape;
  std::vector<float> values;

  int64_t rows() const { return shape.front(); }
  int64_t width() const { return static_cast<int64_t>(values.size()) / rows(); }
  // Rows in another order: the new row i is the old row order(i).
  template <class Order>
  Numbers with_rows(int64_t count, Order order) const {
    Numbers out{shape, {}};
    out.shape.front() = count;
    for (int64_t i = 0; i < count; ++i) {
      const auto from = values.begin() + order(i) * width();
      out.values.insert(out.values.end(), from, from + width());
    }
    return out;
  }
  Numbers transposed() const {
    Numbers out{{width(), rows()}, {}};
    for (int64_t c = 0; c < width(); ++c)
      for (int64_t r = 0; r < rows(); ++r) out.values.push_back(values[static_cast<size_t>(r * width() + c)]);
    return out;
  }
};

// The tensors that the converter writes, computed from the weights of the model.
class Converted {
 public:
  Converted(const std::filesystem::path& directory, const json& config, const GgufArchitecture& architecture)
      : weights_(directory / "model.safetensors"), config_(config), architecture_(architecture) {}

  std::vector<float> numbers(const std::string& name) const {
    if (name == "rope_freqs.weight")
      return config_["model_type"] == "gemma4_text" ? still_pairs() : llama3_factors();
    if (name == "rope_factors_long.weight") return config_["rope_scaling"]["long_factor"];
    if (name == "rope_factors_short.weight") return config_["rope_scaling"]["short_factor"];
    for (const auto& [from, to] : {std::pair{"token_embd.weight", "model.embed_tokens.weight"},
                                   {"output.weight", "lm_head.weight"},
                                   {"per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"},
                                   {"per_layer_model_proj.weight", "model.per_layer_model_projection.weight"},
                                   {"per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight"},
                                   {"output_norm.weight", "model.norm.weight"},
                                   {"token_embd_norm.weight", "model.embedding_norm.weight"}})
      if (name == from) return finished(to, get(to));
    const size_t layer_end = name.find('.', 4), kind = name.rfind('.');
    const std::string part = name.substr(layer_end + 1, kind - layer_end - 1);
    if (part.starts_with("nextn.")) return of_module(part);
    if (name.ends_with(".ssm_a"))
      return of_delta_net("model.layers." + name.substr(4, layer_end - 3), "ssm_a");
    // A module of multi-token prediction, behind the last layer, has the layer's numbers.
    const int64_t layer =
        std::min(std::stol(name.substr(4)), config_["num_hidden_layers"].get<int64_t>() - 1);
    return of_layer("model.layers." + std::to_string(layer) + ".", part, name.substr(kind));
  }

 private:
  Numbers get(const std::string& name) const {
    const auto found = weights_.tensors.find(name);
    EXPECT_TRUE(found != weights_.tensors.end()) << name;
    if (found == weights_.tensors.end()) return {{1}, {0}};
    EXPECT_EQ(found->second.dtype, "F32") << name;
    Numbers out{found->second.shape, std::vector<float>(found->second.bytes.size() / sizeof(float))};
    std::memcpy(out.values.data(), found->second.bytes.data(), found->second.bytes.size());
    return out;
  }
  // Half of the pairs of Gemma 4's wide heads stand still.
  std::vector<float> still_pairs() const {
    const auto pairs = static_cast<size_t>(get("model.layers.1.self_attn.q_norm.weight").rows() / 2);
    std::vector<float> divisors(pairs, 1e30F);
    std::fill_n(divisors.begin(), pairs / 2, 1.0F);
    return divisors;
  }
  // As make_gguf_model_goldens.py makes it of the model's own numbers.
  std::vector<float> of_module(const std::string& part) const {
    if (part == "nextn.embed_tokens") return get("model.embed_tokens.weight").values;
    if (part == "nextn.shared_head_head") return get("lm_head.weight").values;
    if (part != "nextn.eh_proj") return finished("model.norm.weight", get("model.norm.weight"));
    const Numbers rows = get("model.embed_tokens.weight");
    return rows.with_rows(2 * rows.width(), [](int64_t i) { return i; }).transposed().values;
  }
  bool has(const std::string& name) const { return weights_.tensors.contains(name); }

  // Gemma's norms with 1 added; rows of q and k in pairs.
  std::vector<float> finished(const std::string& name, Numbers numbers) const {
    if (architecture_.norms_hold_one && name.ends_with("norm.weight"))
      for (float& value : numbers.values) value += 1;
    const bool is_q = name.find(".q_proj.") != name.npos, is_k = name.find(".k_proj.") != name.npos;
    if (!architecture_.pairs_rows || (!is_q && !is_k)) return numbers.values;
    const int64_t heads = config_[is_q ? "num_attention_heads" : "num_key_value_heads"],
                  head = numbers.rows() / heads;
    return numbers
        .with_rows(numbers.rows(),
                   [&](int64_t i) { return i / head * head + i % head / 2 + i % 2 * (head / 2); })
        .values;
  }

  std::vector<float> of_layer(const std::string& layer, const std::string& part,
                              const std::string& kind) const {
    if (part.ends_with("_exps") && kind != ".scale") return experts(layer, part, kind);
    if (has(layer + "linear_attn.A_log") &&
        (part.starts_with("ssm_") || part == "attn_qkv" || part == "attn_gate"))
      return of_delta_net(layer, part);
    if (part == "attn_k_b" || part == "attn_v_b") return of_latent(layer, part == "attn_k_b");
    const std::string mlp_norm = has(layer + "pre_feedforward_layernorm.weight") ? "pre_feedforward_layernorm"
                                                                                 : "post_attention_layernorm";
    const std::map<std::string, std::string> names{
        {"attn_norm", "input_layernorm"},
        {"ffn_norm", mlp_norm},
        {"post_attention_norm", "post_attention_layernorm"},
        {"post_ffw_norm", "post_feedforward_layernorm"},
        {"inp_gate", "per_layer_input_gate"},
        {"pre_ffw_norm_2", "pre_feedforward_layernorm_2"},
        {"post_ffw_norm_1", "post_feedforward_layernorm_1"},
        {"post_ffw_norm_2", "post_feedforward_layernorm_2"},
        {"proj", "per_layer_projection"},
        {"post_norm", "post_per_layer_input_norm"},
        {"attn_q", "self_attn.q_proj"},
        {"attn_k", "self_attn.k_proj"},
        {"attn_v", "self_attn.v_proj"},
        {"attn_qkv", "self_attn.qkv_proj"},
        {"attn_output", "self_attn.o_proj"},
        {"attn_q_norm",
         has(layer + "self_attn.query_layernorm.weight") ? "self_attn.query_layernorm" : "self_attn.q_norm"},
        {"attn_k_norm",
         has(layer + "self_attn.key_layernorm.weight") ? "self_attn.key_layernorm" : "self_attn.k_norm"},
        {"attn_q_a", "self_attn.q_a_proj"},
        {"attn_q_a_norm", "self_attn.q_a_layernorm"},
        {"attn_q_b", "self_attn.q_b_proj"},
        {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
        {"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
        {"ffn_gate", "mlp.gate_proj"},
        {"ffn_up", has(layer + "mlp.gate_up_proj.weight") ? "mlp.gate_up_proj" : "mlp.up_proj"},
        {"ffn_down", "mlp.down_proj"},
        {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
        {"ffn_gate_shexp", shared() + "gate_proj"},
        {"ffn_up_shexp", shared() + "up_proj"},
        {"ffn_down_shexp", shared() + "down_proj"},
        {"ffn_gate_inp", router(layer)}};
    if (has(layer + "operator_norm.weight") && !part.ends_with("_exps")) return of_lfm2(layer, part, kind);
    if (kind == ".scale")
      return get(layer + (part == "ffn_gate_inp" ? "router.scale" : "router.per_expert_scale")).values;
    if (part == "layer_output_scale") return get(layer + "layer_scalar").values;
    if (part == "attn_sinks") return get(layer + "self_attn.sinks").values;
    if (part == "exp_probs_b") {
      for (const char* block : {"block_sparse_moe.", "mlp.moe_statics."})
        if (const std::string found = layer + block + "e_score_correction_bias"; has(found))
          return get(found).values;
      return get(layer + "mlp.gate.e_score_correction_bias").values;
    }
    const auto found = names.find(part);
    EXPECT_TRUE(found != names.end()) << part;
    const std::string name = layer + found->second + kind;
    return finished(name, get(name));
  }
  // Projections apart, and value heads in turns where the architecture has them so.
  std::vector<float> of_delta_net(const std::string& layer, const std::string& part) const {
    const std::string own = layer + "linear_attn.";
    const int64_t keys = config_["linear_num_key_heads"], values = config_["linear_num_value_heads"],
                  key = config_["linear_key_head_dim"], value = config_["linear_value_head_dim"],
                  each = values / keys, stride = 2 * (key + each * value);
    const auto head = [&](int64_t i) {
      return architecture_.values_in_turns ? i % keys * each + i / keys : i;
    };
    const auto row = [&](int64_t i) { return head(i / value) * value + i % value; };
    const bool is_fused = has(own + "in_proj_qkvz.weight");
    const auto fused_row = [&](int64_t i, int64_t first) {
      return i / value / each * stride + first + i / value % each * value + i % value;
    };
    const auto channel = [&](int64_t i) {
      return i < 2 * keys * key ? i : 2 * keys * key + row(i - 2 * keys * key);
    };
    const int64_t channels = 2 * keys * key + values * value;
    if (part == "attn_qkv" && is_fused)
      return get(own + "in_proj_qkvz.weight")
          .with_rows(channels,
                     [&](int64_t i) {
                       if (i >= 2 * keys * key) return fused_row(i - 2 * keys * key, 2 * key);
                       const int64_t is_key = i / (keys * key), at = i % (keys * key);
                       return at / key * stride + is_key * key + at % key;
                     })
          .values;
    if (part == "attn_gate" && is_fused)
      return get(own + "in_proj_qkvz.weight")
          .with_rows(values * value, [&](int64_t i) { return fused_row(i, 2 * key + each * value); })
          .values;
    if (part == "attn_qkv") return get(own + "in_proj_qkv.weight").with_rows(channels, channel).values;
    if (part == "ssm_conv1d") return get(own + "conv1d.weight").with_rows(channels, channel).values;
    if (part == "attn_gate") return get(own + "in_proj_z.weight").with_rows(values * value, row).values;
    if (part == "ssm_ba") return get(own + "in_proj_ba.weight").values;
    if (part == "ssm_norm") return get(own + "norm.weight").values;
    if (part == "ssm_out")
      return get(own + "out_proj.weight").transposed().with_rows(values * value, row).transposed().values;
    const std::map<std::string, std::string> by_head{{"ssm_beta", "in_proj_b.weight"},
                                                     {"ssm_alpha", "in_proj_a.weight"},
                                                     {"ssm_dt", "dt_bias"},
                                                     {"ssm_a", "A_log"}};
    EXPECT_TRUE(by_head.contains(part)) << part;
    std::vector<float> out = get(own + by_head.at(part)).with_rows(values, head).values;
    if (part == "ssm_a")
      for (float& rate : out) rate = -std::exp(rate);
    return out;
  }
  std::vector<float> of_lfm2(const std::string& layer, const std::string& part,
                             const std::string& kind) const {
    const std::map<std::string, std::string> names{{"attn_norm", "operator_norm"},
                                                   {"ffn_norm", "ffn_norm"},
                                                   {"attn_q", "self_attn.q_proj"},
                                                   {"attn_k", "self_attn.k_proj"},
                                                   {"attn_v", "self_attn.v_proj"},
                                                   {"attn_output", "self_attn.out_proj"},
                                                   {"attn_q_norm", "self_attn.q_layernorm"},
                                                   {"attn_k_norm", "self_attn.k_layernorm"},
                                                   {"shortconv.in_proj", "conv.in_proj"},
                                                   {"shortconv.conv", "conv.conv"},
                                                   {"shortconv.out_proj", "conv.out_proj"},
                                                   {"ffn_gate", "feed_forward.w1"},
                                                   {"ffn_up", "feed_forward.w3"},
                                                   {"ffn_down", "feed_forward.w2"},
                                                   {"ffn_gate_inp", "feed_forward.gate"}};
    if (part == "exp_probs_b") return get(layer + "feed_forward.expert_bias").values;
    EXPECT_TRUE(names.contains(part)) << part;
    return get(layer + names.at(part) + kind).values;
  }
  std::string shared() const {
    return config_.contains("shared_expert_intermediate_size") ? "mlp.shared_expert." : "mlp.shared_experts.";
  }
  std::string router(const std::string& layer) const {
    for (const char* name : {"mlp.gate", "mlp.router", "router.proj", "block_sparse_moe.gate"})
      if (has(layer + name + ".weight")) return name;
    return "";
  }

  // All experts, one after the other.
  std::vector<float> experts(const std::string& layer, const std::string& part,
                             const std::string& kind) const {
    const bool is_down = part.starts_with("ffn_down"), is_up = part.starts_with("ffn_up");
    std::vector<float> out;
    const auto add = [&](const Numbers& numbers) {
      out.insert(out.end(), numbers.values.begin(), numbers.values.end());
    };
    const bool has_biases = has(layer + "mlp.experts.down_proj_bias");
    const std::string block = layer + (has(layer + "experts.down_proj") ? "experts." : "mlp.experts.");
    if (has(block + "down_proj") && !has_biases) {  // [experts, outputs, inputs]
      const Numbers all = get(block + (is_down ? "down_proj" : "gate_up_proj"));
      if (part == "ffn_gate_up_exps") return all.values;
      const auto count = all.shape[0], size = static_cast<int64_t>(all.values.size()) / count,
                 part_size = is_down ? size : size / 2;
      for (int64_t e = 0; e < count; ++e) {
        const auto from = all.values.begin() + e * size + (is_up ? part_size : 0);
        out.insert(out.end(), from, from + part_size);
      }
      return out;
    }
    if (has_biases) {  // gpt-oss: [experts, inputs, outputs], gates and ups in turns
      const std::string whole = layer + "mlp.experts." + (is_down ? "down_proj" : "gate_up_proj");
      const Numbers all = get(kind == ".bias" ? whole + "_bias" : whole);
      const auto count = static_cast<size_t>(all.shape[0]), size = all.values.size() / count;
      for (size_t e = 0; e < count; ++e) {
        const auto from = all.values.begin() + static_cast<ptrdiff_t>(e * size);
        Numbers one{{all.shape.begin() + 1, all.shape.end()}, {from, from + static_cast<ptrdiff_t>(size)}};
        if (kind != ".bias") one = one.transposed();
        if (!is_down) one = one.with_rows(one.rows() / 2, [&](int64_t i) { return 2 * i + is_up; });
        add(one);
      }
      return out;
    }
    const bool is_lfm2 = has(layer + "feed_forward.gate.weight");
    const bool is_mixtral = is_lfm2 || has(layer + "block_sparse_moe.gate.weight");
    const std::string name = is_mixtral ? (is_down ? "w2"
                                           : is_up ? "w3"
                                                   : "w1")
                                        : (is_down ? "down_proj"
                                           : is_up ? "up_proj"
                                                   : "gate_proj");
    for (int e = 0;; ++e) {
      const std::string one = layer +
                              (is_lfm2      ? "feed_forward"
                               : is_mixtral ? "block_sparse_moe"
                                            : "mlp") +
                              ".experts." + std::to_string(e) + "." + name + kind;
      if (!has(one)) return out;
      add(get(one));
    }
  }

  // Half of kv_b_proj of every head: what makes keys, transposed, or values.
  std::vector<float> of_latent(const std::string& layer, bool keys) const {
    const Numbers both = get(layer + "self_attn.kv_b_proj.weight");
    const int64_t nope = config_["qk_nope_head_dim"], value = config_["v_head_dim"], each = nope + value;
    std::vector<float> out;
    for (int64_t h = 0; h < both.rows() / each; ++h) {
      Numbers half =
          both.with_rows(keys ? nope : value, [&](int64_t i) { return h * each + (keys ? i : nope + i); });
      if (keys) half = half.transposed();
      out.insert(out.end(), half.values.begin(), half.values.end());
    }
    return out;
  }

  std::vector<float> llama3_factors() const {
    const json& rope = config_.contains("rope_scaling") && config_["rope_scaling"].is_object()
                           ? config_["rope_scaling"]
                           : config_["rope_parameters"];
    const double theta = config_.contains("rope_theta") ? config_["rope_theta"] : rope["rope_theta"];
    const int64_t head =
        config_["hidden_size"].get<int64_t>() / config_["num_attention_heads"].get<int64_t>();
    const double trained = rope["original_max_position_embeddings"], low = rope["low_freq_factor"],
                 high = rope["high_freq_factor"], factor = rope["factor"];
    std::vector<float> out;
    for (int64_t i = 0; i < head; i += 2) {  // the converter's own steps, in fp32
      const float frequency =
          1.0f / std::pow(static_cast<float>(theta), static_cast<float>(i) / static_cast<float>(head));
      const float wavelength = static_cast<float>(2 * M_PI) / frequency;
      const double smooth = (trained / static_cast<double>(wavelength) - low) / (high - low);
      out.push_back(static_cast<float>(static_cast<double>(wavelength) < trained / high ? 1
                                       : static_cast<double>(wavelength) > trained / low
                                           ? factor
                                           : 1 / ((1 - smooth) / factor + smooth)));
    }
    return out;
  }

  const TensorsToChange weights_;
  const json& config_;
  const GgufArchitecture& architecture_;
};

// The bytes of the file that the converter makes of the model in `directory`, whose config.json is `config`.
inline std::string converted_gguf(const std::string& name, const std::filesystem::path& directory,
                                  const json& config) {
  std::ifstream in(gguf_goldens() / (name + ".head"), std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const size_t head = bytes.size();
  bytes.resize(size_t{4} << 20);  // more than the header of any file
  const auto content = parse_gguf(std::as_bytes(std::span(bytes)), "head");
  EXPECT_TRUE(content.ok()) << content.status().message();
  const auto architecture = gguf_architecture_of(*content, "head");
  EXPECT_TRUE(architecture.ok()) << architecture.status().message();
  const json sums = gguf_cases()[name]["sums"];
  const Converted converted(directory, config, **architecture);
  size_t end = head;
  for (const TensorInfo& tensor : content->tensors) {
    const std::vector<float> numbers = converted.numbers(tensor.name);
    EXPECT_EQ(numbers.size() * sizeof(float), tensor.data.size()) << tensor.name;
    if (numbers.size() * sizeof(float) != tensor.data.size()) return "";
    const auto at = static_cast<size_t>(reinterpret_cast<const char*>(tensor.data.data()) - bytes.data());
    std::memcpy(bytes.data() + at, numbers.data(), tensor.data.size());
    end = std::max(end, at + tensor.data.size());
    // Computed: the last bit may differ.
    if (tensor.name == "rope_freqs.weight" || tensor.name.ends_with(".ssm_a")) continue;
    EXPECT_EQ(crc32(std::string_view(bytes).substr(at, tensor.data.size())), sums[tensor.name])
        << tensor.name;
  }
  bytes.resize(end);
  return bytes;
}

// The config.json of the golden model `name`, with what the converter could not say.
inline json converted_config(const std::string& name) {
  json config = json::parse(std::ifstream(source_dir() / "tests/goldens/models" / name / "config.json"));
  const json one = gguf_cases()[name];
  for (const auto& [key, value] : one["config"].items()) {
    config.erase(key);
    if (!value.is_null()) config[key] = value;
  }
  return config;
}

}  // namespace outrider::testing
