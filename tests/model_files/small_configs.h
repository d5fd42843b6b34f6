// Small configurations of every family as config.json has them, and what reading them gives.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "model_files/family.h"
#include "model_files/model_config.h"
#include "tests/support/temporary_directory.h"

namespace outrider::small_configs {

using nlohmann::json;

inline json small_config(const std::string& model_type, const std::string& architecture) {
  return {{"architectures", {architecture}},
          {"model_type", model_type},
          {"hidden_size", 64},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 8},
          {"num_key_value_heads", 2},
          {"intermediate_size", 172},
          {"vocab_size", 300},
          {"max_position_embeddings", 128},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"hidden_act", "silu"}};
}
inline json llama() { return small_config("llama", "LlamaForCausalLM"); }
inline json mistral() {
  json config = small_config("mistral", "MistralForCausalLM");
  config["sliding_window"] = nullptr;
  return config;
}
inline json qwen2() { return small_config("qwen2", "Qwen2ForCausalLM"); }
inline json qwen3() { return small_config("qwen3", "Qwen3ForCausalLM"); }

// One of each family of the table.
inline std::vector<json> families() {
  std::vector<json> all;
  for (const FamilyTraits& traits : family_table()) {
    json config = small_config(std::string(traits.model_type), std::string(traits.architecture));
    if (traits.activation_key != "hidden_act") config.erase("hidden_act");
    if (traits.windows != Windows::kNone) config["sliding_window"] = nullptr;
    if (traits.experts != nullptr)
      config.update(
          {{traits.experts->count_key, 4}, {traits.experts->chosen_key, 2}, {traits.experts->size_key, 96}});
    if (traits.experts != nullptr && traits.experts->has_shared && traits.experts->shared_is_gated)
      config["shared_expert_intermediate_size"] = 64;
    if (traits.latent_attention)
      config.update({{"num_key_value_heads", 8},
                     {"q_lora_rank", nullptr},
                     {"kv_lora_rank", 32},
                     {"qk_nope_head_dim", 16},
                     {"qk_rope_head_dim", 8},
                     {"v_head_dim", 12},
                     {"first_k_dense_replace", 1},
                     {"n_group", 2},
                     {"topk_group", 1}});
    if (traits.experts != nullptr && traits.experts->dense_layers_first && !traits.latent_attention)
      config.update({{"first_k_dense_replace", 1}, {"n_group", 2}, {"topk_group", 1}});
    if (traits.family == ModelFamily::kOlmo3) config["rope_theta"] = 500000.0;
    if (traits.varied_layers) {
      config.erase("rope_theta");
      config["vocab_size_per_layer_input"] = config["vocab_size"];
    }
    if (traits.rotation_must_be_given) config["rope_scaling"] = {{"rope_type", "default"}};
    all.push_back(config);
  }
  return all;
}

inline json family(ModelFamily wanted) { return families()[static_cast<size_t>(wanted)]; }

inline bool is_scaled(const ModelConfig& config) {
  return !std::holds_alternative<std::monostate>(config.rope.scaling);
}

inline json with(json config, const json& changes) {
  config.update(changes);
  return config;
}
inline json without(json config, const std::string& key) {
  config.erase(key);
  return config;
}

inline Result<ModelConfig> read(const json& config, const std::string& generation_config = "") {
  const TemporaryDirectory directory;
  directory.write("config.json", config.dump());
  if (!generation_config.empty()) directory.write("generation_config.json", generation_config);
  return read_model_config(directory.path());
}

// The code and words of an error; the words must name file and key.
inline void expect_error(const json& config, StatusCode code, const std::string& key,
                         const std::string& words) {
  const Result<ModelConfig> result = read(config);
  ASSERT_FALSE(result.ok()) << config.dump();
  EXPECT_EQ(result.status().code(), code) << result.status().message();
  for (const std::string& part : {std::string("config.json"), "\"" + key + "\"", words})
    EXPECT_NE(result.status().message().find(part), std::string::npos)
        << part << " | " << result.status().message();
}
inline void expect_refused(const json& config, const std::string& key, const std::string& words) {
  expect_error(config, StatusCode::kUnsupported, key, words);
}
inline void expect_invalid(const json& config, const std::string& key, const std::string& words) {
  expect_error(config, StatusCode::kInvalidArgument, key, words);
}

}  // namespace outrider::small_configs
