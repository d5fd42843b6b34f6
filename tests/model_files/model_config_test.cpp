#include "model_files/model_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model_files/family.h"
#include "model_files/model_size.h"
#include "model_files/quantization_config.h"
#include "tests/model_files/test_data.h"
#include "tests/support/temporary_directory.h"

namespace outrider {
namespace {

using nlohmann::json;

json small_config(const std::string& model_type, const std::string& architecture) {
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
json llama() { return small_config("llama", "LlamaForCausalLM"); }
json mistral() {
  json config = small_config("mistral", "MistralForCausalLM");
  config["sliding_window"] = nullptr;
  return config;
}
json qwen2() { return small_config("qwen2", "Qwen2ForCausalLM"); }
json qwen3() { return small_config("qwen3", "Qwen3ForCausalLM"); }

// One of each family of the table.
std::vector<json> families() {
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
    if (traits.rotation_must_be_given) config["rope_scaling"] = {{"rope_type", "default"}};
    all.push_back(config);
  }
  return all;
}

json family(ModelFamily wanted) { return families()[static_cast<size_t>(wanted)]; }

bool is_scaled(const ModelConfig& config) {
  return !std::holds_alternative<std::monostate>(config.rope.scaling);
}

json with(json config, const json& changes) {
  config.update(changes);
  return config;
}
json without(json config, const std::string& key) {
  config.erase(key);
  return config;
}

Result<ModelConfig> read(const json& config, const std::string& generation_config = "") {
  const TemporaryDirectory directory;
  directory.write("config.json", config.dump());
  if (!generation_config.empty()) directory.write("generation_config.json", generation_config);
  return read_model_config(directory.path());
}

// The code and words of an error; the words must name file and key.
void expect_error(const json& config, StatusCode code, const std::string& key, const std::string& words) {
  const Result<ModelConfig> result = read(config);
  ASSERT_FALSE(result.ok()) << config.dump();
  EXPECT_EQ(result.status().code(), code) << result.status().message();
  for (const std::string& part : {std::string("config.json"), "\"" + key + "\"", words})
    EXPECT_NE(result.status().message().find(part), std::string::npos)
        << part << " | " << result.status().message();
}
void expect_refused(const json& config, const std::string& key, const std::string& words) {
  expect_error(config, StatusCode::kUnsupported, key, words);
}
void expect_invalid(const json& config, const std::string& key, const std::string& words) {
  expect_error(config, StatusCode::kInvalidArgument, key, words);
}

TEST(ModelConfig, FamiliesDifferInBiasesAndNorms) {
  const ModelConfig l = *read(llama());
  EXPECT_EQ(l.family, ModelFamily::kLlama);
  EXPECT_EQ(l.head_dim, 8);
  EXPECT_EQ(l.kv_size(), 16);
  EXPECT_EQ(l.heads_per_kv_head(), 4);
  EXPECT_EQ(l.rms_norm_eps, 1e-5);
  EXPECT_FALSE(l.qkv_bias || l.o_bias || l.mlp_bias || l.tie_word_embeddings);
  EXPECT_EQ(l.qk_norm, QkNorm::kNone);
  EXPECT_FALSE(is_scaled(l) || l.bos || l.torch_dtype);
  EXPECT_EQ(beyond_plain_layers(l), "");

  const ModelConfig m = *read(mistral());
  EXPECT_EQ(m.family, ModelFamily::kMistral);
  EXPECT_FALSE(m.qkv_bias);

  const ModelConfig q2 = *read(qwen2());
  EXPECT_EQ(q2.family, ModelFamily::kQwen2);
  EXPECT_TRUE(q2.qkv_bias);
  EXPECT_FALSE(q2.o_bias);

  const ModelConfig q3 = *read(qwen3());
  EXPECT_EQ(q3.family, ModelFamily::kQwen3);
  EXPECT_EQ(q3.qk_norm, QkNorm::kHead);
  EXPECT_FALSE(q3.qkv_bias);
  EXPECT_EQ(q3.head_dim, 128) << "Qwen3 never derives head_dim";
}

TEST(ModelConfig, OptionalBiases) {
  const ModelConfig l = *read(with(llama(), {{"attention_bias", true}, {"mlp_bias", true}}));
  EXPECT_TRUE(l.qkv_bias && l.o_bias && l.mlp_bias);
  const ModelConfig q3 = *read(with(qwen3(), {{"attention_bias", true}}));
  EXPECT_TRUE(q3.qkv_bias && q3.o_bias);
  expect_refused(with(mistral(), {{"attention_bias", true}}), "attention_bias", "no bias");
  expect_refused(with(qwen2(), {{"mlp_bias", true}}), "mlp_bias", "no bias");
}

TEST(ModelConfig, NullAndMissingMeanTheDefault) {
  const ModelConfig config =
      *read(with(without(without(llama(), "num_key_value_heads"), "rms_norm_eps"),
                 {{"head_dim", nullptr}, {"rope_scaling", nullptr}, {"rope_theta", nullptr}}));
  EXPECT_EQ(config.num_kv_heads, 8);
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.rope.theta, 10000);
  EXPECT_EQ(read(without(llama(), "architectures"))->family, ModelFamily::kLlama);
  EXPECT_EQ(read(without(qwen2(), "model_type"))->family, ModelFamily::kQwen2);
}

TEST(ModelConfig, RotationIsReadFromOldAndNewKeys) {
  const json scaling = {{"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 8192},
                        {"rope_type", "llama3"}};
  const Llama3RopeScaling expected{8, 1, 4, 8192};
  const ModelConfig old_file = *read(with(llama(), {{"rope_theta", 500000}, {"rope_scaling", scaling}}));
  EXPECT_EQ(old_file.rope.theta, 500000);
  EXPECT_EQ(old_file.rope.scaling, RopeScaling(expected));

  json parameters = scaling;
  parameters["rope_theta"] = 500000.0;
  const ModelConfig new_file = *read(with(without(llama(), "rope_theta"), {{"rope_parameters", parameters}}));
  EXPECT_EQ(new_file.rope.theta, 500000);
  EXPECT_EQ(new_file.rope.scaling, RopeScaling(expected));

  const ModelConfig plain =
      *read(with(without(llama(), "rope_theta"),
                 {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 7e5}}}}));
  EXPECT_EQ(plain.rope.theta, 7e5);
  EXPECT_FALSE(is_scaled(plain));

  json cut = scaling;
  cut.erase("low_freq_factor");
  expect_invalid(with(llama(), {{"rope_scaling", cut}}), "low_freq_factor", "missing");
  expect_invalid(with(llama(), {{"rope_scaling", with(scaling, {{"high_freq_factor", 1.0}})}}),
                 "high_freq_factor", "larger");
  expect_invalid(with(llama(), {{"rope_scaling", "llama3"}}), "rope_scaling", "object");
}

TEST(ModelConfig, OtherRotationsAreRefusedByName) {
  for (const char* type : {"mrope", "proportional", "warp"}) {
    expect_refused(with(qwen2(), {{"rope_scaling", {{"rope_type", type}, {"factor", 4.0}}}}), "rope_type",
                   type);
    expect_refused(with(qwen2(), {{"rope_scaling", {{"type", type}, {"factor", 4.0}}}}), "type",
                   "max_position_embeddings");
    expect_refused(with(qwen2(), {{"rope_parameters", {{"rope_type", type}, {"factor", 4.0}}}}), "rope_type",
                   type);
  }
  expect_refused(with(llama(), {{"partial_rotary_factor", 0.5}}), "partial_rotary_factor", "0.5");
  expect_refused(with(llama(), {{"rope_parameters", {{"partial_rotary_factor", 0.5}}}}),
                 "partial_rotary_factor", "0.5");
  expect_refused(with(llama(), {{"rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}}}}),
                 "rope_parameters", "layer type");
  EXPECT_TRUE(read(with(llama(), {{"partial_rotary_factor", 1.0}})).ok());
}

TEST(ModelConfig, ScaledRotations) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto read_with = [&](const json& family, const json& rope) {
      return *read(with(family, {{key, rope}}));
    };
    EXPECT_EQ(read_with(llama(), {{"type", "linear"}, {"factor", 4}}).rope.scaling,
              RopeScaling(LinearRopeScaling{4}));
    // Within max_position_embeddings, where texts end, it turns as if nothing were said.
    EXPECT_FALSE(is_scaled(read_with(llama(), {{"rope_type", "dynamic"}, {"factor", 4}})));

    const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};
    const RopeConfig turned = read_with(qwen2(), yarn).rope;
    EXPECT_EQ(turned.scaling, RopeScaling(YarnRopeScaling{4, 32, 1, true, 64}));
    EXPECT_DOUBLE_EQ(turned.amplitude, 0.1 * std::log(4) + 1);
    EXPECT_EQ(read_with(qwen2(), with(yarn, {{"attention_factor", 1.5}})).rope.amplitude, 1.5);
    EXPECT_DOUBLE_EQ(
        read_with(qwen2(), with(yarn, {{"mscale", 2.0}, {"mscale_all_dim", 1.0}})).rope.amplitude,
        (0.2 * std::log(4) + 1) / (0.1 * std::log(4) + 1));
  }
  expect_invalid(with(llama(), {{"rope_scaling", {{"type", "linear"}}}}), "factor", "missing");
  expect_invalid(with(llama(), {{"rope_scaling", {{"type", "yarn"}}}}), "factor", "missing");
  expect_refused(with(llama(), {{"rope_scaling", {{"type", "linear"}, {"factor", 2}, {"beta_fast", 32}}}}),
                 "beta_fast", "linear");
}

// Phi-3 turns by other factors beyond its trained length, where a cache would hold what was turned otherwise.
TEST(ModelConfig, LongRopeEndsAtTheTrainedLength) {
  const json phi3 = small_config("phi3", "Phi3ForCausalLM");
  const json rope = {{"type", "longrope"}, {"short_factor", {1, 1.5, 2, 3}}, {"long_factor", {1, 3, 9, 9}}};
  const json old_file = with(phi3, {{"rope_scaling", rope}, {"original_max_position_embeddings", 32}});
  const ModelConfig config = *read(old_file);
  EXPECT_EQ(config.max_position_embeddings, 32);
  EXPECT_EQ(config.rope.scaling, RopeScaling(LongRopeScaling{{1, 1.5, 2, 3}}));
  EXPECT_DOUBLE_EQ(config.rope.amplitude, std::sqrt(1 + std::log(4) / std::log(32)));
  EXPECT_EQ(config.rope.dims, 8);
  EXPECT_EQ(read(with(old_file, {{"rope_scaling", with(rope, {{"type", "su"}})}}))->rope, config.rope);
  expect_invalid(with(phi3, {{"rope_scaling", rope}}), "original_max_position_embeddings", "missing");
  expect_invalid(with(old_file, {{"rope_scaling", with(rope, {{"short_factor", {1, 2}}})}}), "short_factor",
                 "4");
  expect_invalid(with(old_file, {{"rope_scaling", with(rope, {{"factor", 8.0}})}}), "factor", "differ");
  expect_refused(with(phi3, {{"rope_scaling", {{"type", "yarn"}, {"factor", 4.0}}}}), "type", "longrope");

  const json half = with(phi3, {{"partial_rotary_factor", 0.5}});
  EXPECT_EQ(read(half)->rope.dims, 4);
  expect_invalid(with(phi3, {{"partial_rotary_factor", 0.4}}), "partial_rotary_factor", "even");
}

TEST(ModelConfig, ContradictingRotationsAreRefused) {
  const json llama3 = {{"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192},
                       {"rope_type", "llama3"}};
  const json plain = {{"rope_type", "default"}, {"rope_theta", 10000.0}};
  const json both = with(llama(), {{"rope_parameters", plain}});
  // Each of the two objects alone is understood or refused; so are they side by side.
  for (const char* type : {"linear", "yarn"})
    expect_invalid(with(both, {{"rope_scaling", {{"rope_type", type}, {"factor", 4.0}}}}), "rope_scaling",
                   "\"rope_parameters\"");
  expect_refused(with(both, {{"rope_scaling", {{"rope_type", "warp"}, {"factor", 4.0}}}}), "rope_type",
                 "warp");
  expect_invalid(with(both, {{"rope_scaling", llama3}}), "rope_scaling", "\"rope_parameters\"");
  expect_invalid(
      with(llama(), {{"rope_parameters", llama3}, {"rope_scaling", with(llama3, {{"factor", 4}})}}),
      "rope_scaling", "\"rope_parameters\"");
  EXPECT_EQ(read(with(llama(), {{"rope_parameters", llama3}, {"rope_scaling", llama3}}))->rope.scaling,
            (RopeScaling(Llama3RopeScaling{8, 1, 4, 8192})));
  EXPECT_FALSE(is_scaled(*read(with(both, {{"rope_scaling", {{"type", "default"}}}}))));
  EXPECT_FALSE(is_scaled(*read(with(both, {{"rope_scaling", json::object()}}))));

  expect_invalid(with(both, {{"rope_theta", 500000}}), "rope_theta", "10000");
  expect_invalid(with(llama(), {{"rope_scaling", with(llama3, {{"type", "default"}})}}), "type", "llama3");
  EXPECT_TRUE(read(with(llama(), {{"rope_scaling", with(llama3, {{"type", "llama3"}})}})).ok());
  expect_invalid(with(llama(), {{"rope_scaling", llama3}, {"original_max_position_embeddings", 4096}}),
                 "original_max_position_embeddings", "8192");
}

TEST(ModelConfig, EveryKeyOfARotationIsUnderstood) {
  for (const char* object : {"rope_scaling", "rope_parameters"}) {
    expect_refused(with(llama(), {{object, {{"factor", 4.0}}}}), "factor", "rope_type");
    expect_refused(with(llama(), {{object, {{"rope_type", "default"}, {"factor", 4.0}}}}), "factor", "4.0");
    EXPECT_TRUE(read(with(llama(), {{object, {{"rope_type", "default"}, {"factor", 1}}}})).ok());
    expect_refused(with(llama(), {{object, {{"rope_type", "default"}, {"mrope_section", {16, 24, 24}}}}}),
                   "mrope_section", object);
    EXPECT_TRUE(read(with(llama(), {{object, {{"rope_type", "default"}, {"beta_fast", nullptr}}}})).ok());
    expect_refused(with(llama(), {{object,
                                   {{"rope_type", "llama3"},
                                    {"factor", 8.0},
                                    {"low_freq_factor", 1.0},
                                    {"high_freq_factor", 4.0},
                                    {"original_max_position_embeddings", 8192},
                                    {"attention_factor", 1.2}}}}),
                   "attention_factor", "1.2");
  }
}

TEST(ModelConfig, AnUnknownKeyIsRefusedByName) {
  for (const json& family : families()) {
    for (const json& value : {json(2.0), json(true), json(false), json("x"), json::object(), json::array()})
      expect_refused(with(family, {{"warp_factor", value}}), "warp_factor", "remove");
    EXPECT_TRUE(read(with(family, {{"warp_factor", nullptr}})).ok());
  }
}

TEST(ModelConfig, KeysThatScaleSomethingMustBeNeutral) {
  // Granite, Gemma 2, MiniCPM, OLMo, Cohere, Llama 4 under the name of a family that is supported.
  for (const auto& [key, neutral, other] : std::vector<std::tuple<std::string, json, json>>{
           {"embedding_multiplier", 1, 12.0},
           {"residual_multiplier", 1.0, 0.22},
           {"logits_scaling", 1.0, 8.0},
           {"logit_scale", 1, 0.0625},
           {"attention_multiplier", nullptr, 0.015625},
           {"final_logit_softcapping", nullptr, 30.0},
           {"attn_logit_softcapping", nullptr, 50.0},
           {"query_pre_attn_scalar", nullptr, 256},
           {"clip_qkv", nullptr, 8.0},
           {"use_qk_norm", false, true},
           {"use_mrope", false, true},
           {"rope_interleaved", false, true},
           {"is_encoder_decoder", false, true},
           {"add_cross_attention", false, true},
           {"pruned_heads", json::object(), {{"0", {1}}}},
           {"per_layer_config", json::object(), {{"0", {{"hidden_act", "gelu"}}}}},
           {"no_rope_layers", json::array(), {1, 0}}}) {
    EXPECT_TRUE(read(with(llama(), {{key, neutral}})).ok())
        << key << ' ' << read(with(llama(), {{key, neutral}})).status().message();
    expect_refused(with(llama(), {{key, other}}), key, other.dump());
  }
}

// Keys of published config files that the reference classes do not read.
TEST(ModelConfig, KeysOfPublishedFiles) {
  const json coder = with(family(ModelFamily::kQwen3Moe), {{"qkv_bias", false},
                                                           {"shared_expert_intermediate_size", 0},
                                                           {"use_qk_norm", true},
                                                           {"use_sliding_window", false},
                                                           {"max_window_layers", 28},
                                                           {"output_router_logits", false},
                                                           {"router_aux_loss_coef", 0.0}});
  EXPECT_TRUE(read(coder).ok()) << read(coder).status().message();
  expect_refused(with(coder, {{"use_qk_norm", false}}), "use_qk_norm", "false");
  expect_refused(with(coder, {{"qkv_bias", true}}), "qkv_bias", "true");
  const json phi4_mini = with(small_config("phi3", "Phi3ForCausalLM"), {{"attention_bias", false},
                                                                        {"embd_pdrop", 0.0},
                                                                        {"full_attn_mod", 1},
                                                                        {"interpolate_factor", 1},
                                                                        {"lm_head_bias", false},
                                                                        {"mlp_bias", false},
                                                                        {"resid_pdrop", 0.0},
                                                                        {"sliding_window", 262144}});
  EXPECT_TRUE(read(phi4_mini).ok()) << read(phi4_mini).status().message();
  expect_refused(with(phi4_mini, {{"full_attn_mod", 2}}), "full_attn_mod", "2");
  const json gemma2 =
      with(small_config("gemma2", "Gemma2ForCausalLM"), {{"hidden_act", "gelu_pytorch_tanh"},
                                                         {"hidden_activation", "gelu_pytorch_tanh"},
                                                         {"cache_implementation", "hybrid"},
                                                         {"sliding_window", 4096}});
  EXPECT_TRUE(read(gemma2).ok()) << read(gemma2).status().message();
}

// As gpt-oss-20b says it, in smaller numbers.
TEST(ModelConfig, GptOss) {
  const json yarn = {{"rope_type", "yarn"}, {"factor", 32.0},    {"beta_fast", 32.0},
                     {"beta_slow", 1.0},    {"truncate", false}, {"original_max_position_embeddings", 16}};
  const json published =
      with(family(ModelFamily::kGptOss),
           {{"attention_bias", true},
            {"experts_per_token", 2},
            {"initial_context_length", 16},
            {"layer_types", {"sliding_attention", "full_attention"}},
            {"max_position_embeddings", 512},
            {"output_router_logits", false},
            {"rope_scaling", yarn},
            {"rope_theta", 150000},
            {"router_aux_loss_coef", 0.9},
            {"sliding_window", 128},
            {"swiglu_limit", 7.0},
            {"quantization_config",
             {{"quant_method", "mxfp4"}, {"modules_to_not_convert", {"model.embed_tokens"}}}}});
  const Result<ModelConfig> read_config = read(published);
  ASSERT_TRUE(read_config.ok()) << read_config.status().message();
  const ModelConfig& config = *read_config;
  EXPECT_EQ(config.head_dim, 64) << "the class never derives it";
  EXPECT_TRUE(config.qkv_bias && config.o_bias && config.attention_sinks);
  EXPECT_EQ(config.activation, Activation::kClampedSwish);
  EXPECT_EQ(config.scales, (ModelScales{.gate_factor = 1.702, .gate_limit = 7}));
  EXPECT_EQ(config.layer(0).window, 128);
  EXPECT_EQ(config.layer(1).window, 0);
  EXPECT_EQ(config.rope.scaling, RopeScaling(YarnRopeScaling{32, 32, 1, false, 16}));
  EXPECT_DOUBLE_EQ(config.rope.amplitude, 0.1 * std::log(32) + 1);
  EXPECT_TRUE(config.experts && config.experts->biases && config.experts->renormalise);
  EXPECT_EQ(config.experts->intermediate_size, 96);
  EXPECT_EQ(config.quantization->method, QuantMethod::kMxfp4);

  EXPECT_FALSE(read(with(published, {{"attention_bias", false}}))->qkv_bias);
  EXPECT_TRUE(read(without(published, "attention_bias"))->o_bias);
  EXPECT_EQ(read(with(published, {{"swiglu_alpha", 1.5}}))->scales.gate_factor, 1.5);
  EXPECT_EQ(read(without(published, "layer_types"))->layer(0).window, 128);
  expect_invalid(with(published, {{"experts_per_token", 4}}), "experts_per_token", "num_experts_per_tok");
  expect_invalid(with(published, {{"initial_context_length", 32}}), "initial_context_length", "16");
  expect_refused(without(published, "rope_scaling"), "rope_scaling", "missing");
  expect_refused(with(published, {{"hidden_act", "gelu"}}), "hidden_act", "gelu");
  expect_refused(with(llama(), {{"swiglu_limit", 7.0}}), "swiglu_limit", "7.0");
  expect_refused(with(llama(), {{"initial_context_length", 128}}), "initial_context_length", "128");
}

// As DeepSeek-V3 says it, in smaller numbers.
TEST(ModelConfig, Deepseek) {
  const json yarn = {{"type", "yarn"},
                     {"factor", 40},
                     {"beta_fast", 32},
                     {"beta_slow", 1},
                     {"mscale", 1.0},
                     {"mscale_all_dim", 1.0},
                     {"original_max_position_embeddings", 16}};
  const json published = with(family(ModelFamily::kDeepseekV3), {{"attention_bias", false},
                                                                 {"aux_loss_alpha", 0.001},
                                                                 {"ep_size", 1},
                                                                 {"moe_layer_freq", 1},
                                                                 {"n_shared_experts", 2},
                                                                 {"norm_topk_prob", true},
                                                                 {"num_nextn_predict_layers", 1},
                                                                 {"q_lora_rank", 24},
                                                                 {"rope_scaling", yarn},
                                                                 {"routed_scaling_factor", 2.5},
                                                                 {"scoring_func", "sigmoid"},
                                                                 {"seq_aux", true},
                                                                 {"topk_method", "noaux_tc"}});
  const Result<ModelConfig> read_config = read(published);
  ASSERT_TRUE(read_config.ok()) << read_config.status().message();
  const ModelConfig& config = *read_config;
  EXPECT_EQ(config.latent, (LatentConfig{24, 32, 16, 8, 12, true}));
  EXPECT_EQ(config.head_dim, 40);
  EXPECT_EQ(config.num_kv_heads, 1);
  EXPECT_EQ(config.output_dim(), 12);
  EXPECT_EQ(config.rope.dims, 8);
  EXPECT_EQ(config.rope.amplitude, 1);
  const double mscale = 0.1 * std::log(40) + 1;
  EXPECT_DOUBLE_EQ(config.scales.attention, mscale * mscale / std::sqrt(24));
  EXPECT_FALSE(config.layer(0).has_experts);
  EXPECT_TRUE(config.layer(1).has_experts);
  EXPECT_EQ(config.experts, (ExpertConfig{.count = 4,
                                          .chosen = 2,
                                          .intermediate_size = 96,
                                          .shared_intermediate_size = 192,
                                          .score = RouterScore::kSigmoid,
                                          .corrected = true,
                                          .groups = 2,
                                          .groups_chosen = 1,
                                          .factor = 2.5}));
  expect_refused(with(published, {{"scoring_func", "softmax"}}), "scoring_func", "sigmoid");
  expect_refused(with(published, {{"topk_method", "greedy"}}), "topk_method", "noaux_tc");
  expect_refused(with(published, {{"moe_layer_freq", 2}}), "moe_layer_freq", "1");
  expect_refused(with(published, {{"num_key_value_heads", 2}}), "num_key_value_heads", "8");
  expect_refused(with(published, {{"attention_bias", true}}), "attention_bias", "true");
  expect_refused(with(published, {{"head_dim", 16}}), "head_dim", "8");
  expect_invalid(without(published, "q_lora_rank"), "q_lora_rank", "null");
  expect_invalid(with(published, {{"n_group", 3}}), "n_group", "divide");
  expect_invalid(with(published, {{"num_experts_per_tok", 3}}), "topk_group", "fewer");
  expect_invalid(without(published, "first_k_dense_replace"), "first_k_dense_replace", "missing");

  const json v2 = with(family(ModelFamily::kDeepseekV2), {{"topk_method", "group_limited_greedy"}});
  EXPECT_EQ(read(v2)->experts->groups, 2);
  EXPECT_FALSE(read(v2)->experts->renormalise);
  EXPECT_EQ(read(with(v2, {{"topk_method", "greedy"}}))->experts->groups, 1);
  expect_refused(with(v2, {{"norm_topk_prob", true}}), "norm_topk_prob", "true");
  expect_refused(with(v2, {{"rope_interleave", false}}), "rope_interleave", "false");
  expect_refused(with(llama(), {{"kv_lora_rank", 32}}), "kv_lora_rank", "32");
}

TEST(ModelConfig, Ernie45HasBiasesByKeyAndExpertsInARange) {
  const json dense = family(ModelFamily::kErnie45), moe = family(ModelFamily::kErnie45Moe);
  const auto biased = read(with(dense, {{"use_bias", true}, {"architectures", {"Ernie4_5_ForCausalLM"}}}));
  ASSERT_TRUE(biased.ok()) << biased.status().message();
  EXPECT_TRUE(biased->qkv_bias && biased->o_bias && biased->mlp_bias && biased->rope.interleaved);
  EXPECT_FALSE(read(dense)->qkv_bias);
  expect_refused(with(dense, {{"attention_bias", true}}), "attention_bias", "no bias");
  const auto config = read(with(moe, {{"num_hidden_layers", 6},
                                      {"moe_layer_start_index", 1},
                                      {"moe_layer_end_index", 4},
                                      {"moe_layer_interval", 2},
                                      {"moe_num_shared_experts", 0}}));
  ASSERT_TRUE(config.ok()) << config.status().message();
  for (const int64_t i : {0, 1, 2, 3, 4, 5}) EXPECT_EQ(config->layer(i).has_experts, i == 1 || i == 3) << i;
  EXPECT_EQ(config->experts->shared_intermediate_size, 0);
  EXPECT_EQ(read(moe)->experts->shared_intermediate_size, 2 * 96);
  EXPECT_TRUE(read(moe)->experts->corrected);
  EXPECT_EQ(read(moe)->experts->score, RouterScore::kSoftmax);
  expect_refused(with(moe, {{"use_bias", true}}), "use_bias", "true");
  expect_refused(with(moe, {{"moe_norm_min", 0.5}}), "moe_norm_min", "0.5");
  expect_refused(with(moe, {{"moe_gate", "hash"}}), "moe_gate", "hash");
}

// As tencent/Hunyuan-7B-Instruct has it.
TEST(ModelConfig, HunyuanSlowsRotationsByAlpha) {
  const json hunyuan = family(ModelFamily::kHunyuanDense);
  const json rope{{"alpha", 1000.0}, {"beta_fast", 32},   {"beta_slow", 1},       {"factor", 1.0},
                  {"mscale", 1.0},   {"type", "dynamic"}, {"mscale_all_dim", 1.0}};
  const auto config = read(
      with(hunyuan, {{"rope_scaling", rope}, {"num_experts", 1}, {"use_qk_norm", true}, {"use_cla", false}}));
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->rope.scaling, RopeScaling(NtkAlphaRopeScaling{1000}));
  EXPECT_TRUE(config->norms_rotated);
  expect_refused(with(hunyuan, {{"num_experts", 2}}), "num_experts", "mixture");
  expect_refused(with(hunyuan, {{"use_cla", true}}), "use_cla", "true");
  expect_refused(with(hunyuan, {{"use_qk_norm", false}}), "use_qk_norm", "false");
  expect_refused(with(hunyuan, {{"norm_type", "layer"}}), "norm_type", "layer");
  expect_refused(with(llama(), {{"rope_scaling", rope}}), "alpha", "dynamic");
}

// As LiquidAI/LFM2-350M has it, with fewer layers.
TEST(ModelConfig, Lfm2HasShortConvolutions) {
  const json lfm2 =
      without(with(family(ModelFamily::kLfm2), {{"num_hidden_layers", 4},
                                                {"norm_eps", 1e-5},
                                                {"layer_types", {"conv", "conv", "full_attention", "conv"}},
                                                {"block_auto_adjust_ff_dim", true},
                                                {"block_dim", 64},
                                                {"block_ff_dim", 6656},
                                                {"block_ffn_dim_multiplier", 1.0},
                                                {"block_multiple_of", 256},
                                                {"block_norm_eps", 1e-5},
                                                {"block_use_swiglu", true},
                                                {"block_mlp_init_scale", 1.0},
                                                {"conv_L_cache", 3},
                                                {"conv_bias", false},
                                                {"conv_dim", 64},
                                                {"conv_dim_out", 64},
                                                {"num_heads", 8},
                                                {"use_pos_enc", true}}),
              "rms_norm_eps");
  const auto config = read(lfm2);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->intermediate_size, 4608);
  EXPECT_EQ(config->conv_taps, 3);
  EXPECT_EQ(config->rms_norm_eps, 1e-5);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_EQ(config->qk_norm, QkNorm::kHead);
  EXPECT_EQ(beyond_plain_layers(*config), "layers with a short convolution");
  for (const int64_t i : {0, 1, 2, 3}) EXPECT_EQ(config->is_conv(i), i != 2) << i;
  // Keys and values in one layer, a row of every channel in three.
  EXPECT_EQ(size_of(*config).kv_numbers, 2 * 2 * 8 + 3 * 64);

  const json older = with(without(lfm2, "layer_types"), {{"full_attn_idxs", {0, 3}}});
  for (const int64_t i : {0, 1, 2, 3}) EXPECT_EQ(read(older)->is_conv(i), i == 1 || i == 2) << i;
  EXPECT_EQ(read(without(lfm2, "layer_types"))->conv_taps, 0);
  EXPECT_EQ(read(with(lfm2, {{"block_auto_adjust_ff_dim", false}}))->intermediate_size, 6656);
  EXPECT_EQ(read(with(lfm2, {{"block_ffn_dim_multiplier", 1.5}}))->intermediate_size, 6656);
  EXPECT_EQ(read(with(lfm2, {{"block_ffn_dim_multiplier", nullptr}}))->intermediate_size, 4437);
  EXPECT_EQ(read(without(lfm2, "block_ff_dim"))->intermediate_size, 256) << "of 172";
  EXPECT_FALSE(read(with(lfm2, {{"tie_embedding", false}}))->tie_word_embeddings);

  expect_refused(with(lfm2, {{"conv_bias", true}}), "conv_bias", "true");
  expect_refused(with(lfm2, {{"conv_dim", 32}}), "conv_dim", "32");
  expect_refused(with(lfm2, {{"use_pos_enc", false}}), "use_pos_enc", "true");
  expect_refused(with(lfm2, {{"block_use_swiglu", false}}), "block_use_swiglu", "true");
  expect_refused(with(lfm2, {{"rms_norm_eps", 1e-6}}), "rms_norm_eps", "norm_eps");
  expect_refused(with(lfm2, {{"sliding_window", 32}}), "sliding_window", "remove");
  expect_refused(with(lfm2, {{"layer_types", {"conv", "mamba", "conv", "conv"}}}), "layer_types", "mamba");
  expect_invalid(with(lfm2, {{"layer_types", {"conv"}}}), "layer_types", "4");
  expect_invalid(with(older, {{"full_attn_idxs", {4}}}), "full_attn_idxs", "4");
  expect_invalid(with(lfm2, {{"conv_L_cache", 0}}), "conv_L_cache", "1");
  expect_refused(with(llama(), {{"conv_L_cache", 3}}), "conv_L_cache", "not understood");
  expect_refused(with(llama(), {{"layer_types", {"conv", "conv"}}}), "layer_types", "conv");
}

// As LiquidAI/LFM2-8B-A1B has it, with fewer layers.
TEST(ModelConfig, Lfm2MoeHasShortConvolutionsAndExperts) {
  const json moe = without(
      with(family(ModelFamily::kLfm2Moe), {{"num_hidden_layers", 4},
                                           {"norm_eps", 1e-5},
                                           {"layer_types", {"conv", "conv", "full_attention", "conv"}},
                                           {"conv_L_cache", 3},
                                           {"norm_topk_prob", true},
                                           {"use_expert_bias", true},
                                           {"routed_scaling_factor", 1.0}}),
      "rms_norm_eps");
  const auto config = read(moe);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->intermediate_size, 172) << "as it stands";
  for (const int64_t i : {0, 1, 2, 3}) {
    EXPECT_EQ(config->is_conv(i), i != 2) << i;
    EXPECT_EQ(config->layer(i).has_experts, i >= 2) << i;
  }
  EXPECT_TRUE(config->experts->corrected && config->experts->renormalise);
  EXPECT_EQ(config->experts->score, RouterScore::kSigmoid);
  EXPECT_EQ(config->experts->added, 1e-6);
  EXPECT_TRUE(read(with(moe, {{"num_dense_layers", 1}}))->layer(1).has_experts);
  const auto plain = read(with(moe, {{"use_expert_bias", false}, {"norm_topk_prob", false}}));
  EXPECT_FALSE(plain->experts->corrected || plain->experts->renormalise);
  expect_refused(with(moe, {{"block_ff_dim", 100}}), "block_ff_dim", "not understood");
  expect_refused(with(moe, {{"n_group", 2}}), "n_group", "not understood");
}

// As Qwen/Qwen3-Next-80B-A3B-Instruct has it, with fewer layers.
TEST(ModelConfig, Qwen3NextHasGatedDeltaNets) {
  const json next = with(family(ModelFamily::kQwen3Next), {{"num_hidden_layers", 8},
                                                           {"attention_bias", false},
                                                           {"decoder_sparse_step", 1},
                                                           {"full_attention_interval", 4},
                                                           {"head_dim", 256},
                                                           {"linear_conv_kernel_dim", 4},
                                                           {"linear_key_head_dim", 128},
                                                           {"linear_num_key_heads", 16},
                                                           {"linear_num_value_heads", 32},
                                                           {"linear_value_head_dim", 128},
                                                           {"mlp_only_layers", json::array()},
                                                           {"norm_topk_prob", true},
                                                           {"partial_rotary_factor", 0.25},
                                                           {"rope_theta", 10000000},
                                                           {"use_sliding_window", false}});
  const auto config = read(next);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(
      config->delta_net,
      (DeltaNetConfig{.key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128, .taps = 4}));
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(config->is_delta_net(i), i % 4 != 3) << i;
  EXPECT_TRUE(config->attention_gate && config->norm_adds_one && config->experts->renormalise);
  EXPECT_EQ(config->rope.dims, 64);
  EXPECT_EQ(beyond_plain_layers(*config), "a mixture of experts");
  EXPECT_EQ(read(without(next, "partial_rotary_factor"))->rope.dims, 64) << "as its class assumes";
  EXPECT_TRUE(read(without(next, "norm_topk_prob"))->experts->renormalise);
  // Of 6 layers: what the convolution reads, b and a; and of 2 layers keys and values.
  EXPECT_EQ(size_of(*config).kv_numbers, 6 * (8192 + 64) + 2 * 2 * 2 * 256);
  EXPECT_EQ(size_of(*config).state_numbers, 6 * 32 * 128 * 128);

  const json listed =
      with(next, {{"num_hidden_layers", 2}, {"layer_types", {"full_attention", "linear_attention"}}});
  for (const int64_t i : {0, 1}) EXPECT_EQ(read(listed)->is_delta_net(i), i == 1) << i;
  expect_refused(with(listed, {{"layer_types", {"mamba", "linear_attention"}}}), "layer_types", "mamba");
  expect_invalid(with(listed, {{"layer_types", {"linear_attention"}}}), "layer_types", "2");
  expect_invalid(with(next, {{"linear_num_value_heads", 24}}), "linear_num_value_heads", "16");
  expect_invalid(with(next, {{"linear_conv_kernel_dim", 0}}), "linear_conv_kernel_dim", "1");
  expect_refused(with(next, {{"attention_bias", true}}), "attention_bias", "no bias");
  expect_refused(with(next, {{"attn_output_gate", false}}), "attn_output_gate", "gate");
  expect_refused(with(next, {{"mamba_ssm_dtype", "bfloat16"}}), "mamba_ssm_dtype", "float32");
  expect_refused(with(next, {{"sliding_window", 32}}), "sliding_window", "remove");
  expect_refused(with(llama(), {{"linear_num_key_heads", 16}}), "linear_num_key_heads", "not understood");
}

// As Qwen/Qwen3.5-27B and Qwen/Qwen3.5-35B-A3B have it, with fewer layers.
TEST(ModelConfig, Qwen35IsATextModelOfOneForImages) {
  const json rope{{"rope_type", "default"},
                  {"rope_theta", 10000000},
                  {"partial_rotary_factor", 0.25},
                  {"mrope_section", {11, 11, 10}},
                  {"mrope_interleaved", true}};
  const json text =
      without(without(with(family(ModelFamily::kQwen35), {{"attn_output_gate", true},
                                                          {"mamba_ssm_dtype", "float32"},
                                                          {"mtp_num_hidden_layers", 1},
                                                          {"mtp_use_dedicated_embeddings", false},
                                                          {"mlp_only_layers", json::array()},
                                                          {"rope_parameters", rope}}),
                      "architectures"),
              "rope_theta");
  const json whole{{"architectures", {"Qwen3_5ForConditionalGeneration"}},
                   {"model_type", "qwen3_5"},
                   {"image_token_id", 10},
                   {"vision_start_token_id", 11},
                   {"vision_config", {{"hidden_size", 8}}},
                   {"text_config", text}};
  const auto config = read(whole);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->family, ModelFamily::kQwen35);
  EXPECT_EQ(config->rope.dims, 64);
  EXPECT_TRUE(config->is_delta_net(0));
  const auto alone = read(text);
  ASSERT_TRUE(alone.ok()) << alone.status().message();
  EXPECT_EQ(alone->rope, config->rope);
  expect_refused(with(text, {{"mlp_only_layers", {1}}}), "mlp_only_layers", "remove");

  const auto moe = read(without(family(ModelFamily::kQwen35Moe), "intermediate_size"));
  ASSERT_TRUE(moe.ok()) << moe.status().message();
  EXPECT_TRUE(moe->experts->renormalise);
  EXPECT_EQ(moe->experts->shared_intermediate_size, 64);
}

// As mistralai/Mistral-Small-3.1-24B and google/gemma-3-4b-it have it, with smaller sizes.
TEST(ModelConfig, TheTextModelOfAModelForImagesIsRead) {
  json text = without(mistral(), "architectures");
  const json whole{{"architectures", {"Mistral3ForConditionalGeneration"}},
                   {"model_type", "mistral3"},
                   {"image_token_index", 10},
                   {"multimodal_projector_bias", false},
                   {"projector_hidden_act", "gelu"},
                   {"spatial_merge_size", 2},
                   {"torch_dtype", "bfloat16"},
                   {"eos_token_id", {1, 106}},
                   {"transformers_version", "4.50.0.dev0"},
                   {"vision_feature_layer", -1},
                   {"vision_config", {{"hidden_size", 8}, {"model_type", "pixtral"}}},
                   {"text_config", text}};
  const auto config = read(whole);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->family, ModelFamily::kMistral);
  EXPECT_EQ(config->torch_dtype, Dtype::kBF16);
  EXPECT_EQ(config->eos, (std::vector{TokenId(1), TokenId(106)}));
  EXPECT_FALSE(config->tie_word_embeddings);
  EXPECT_TRUE(read(with(whole, {{"tie_word_embeddings", true}}))->tie_word_embeddings);
  expect_refused(with(whole, {{"warp_factor", 2}}), "warp_factor", "text_config");
  expect_refused(with(whole, {{"is_encoder_decoder", true}}), "is_encoder_decoder", "text_config");
  expect_refused(with(whole, {{"text_config", with(text, {{"warp_factor", 2}})}}), "warp_factor", "remove");
  const auto unknown = read(with(whole, {{"text_config", with(text, {{"model_type", "ministral3"}})}}));
  EXPECT_EQ(unknown.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(unknown.status().message().find(
                "config.json: text_config.model_type \"ministral3\" is not supported; supported are llama, "),
            std::string::npos)
      << unknown.status().message();
  expect_invalid(with(whole, {{"text_config", without(text, "model_type")}}), "model_type", "missing");
  const json small{{"hidden_size", 64},
                   {"intermediate_size", 96},
                   {"model_type", "gemma3_text"},
                   {"num_hidden_layers", 12},
                   {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                   {"sliding_window", 1024}};
  const json gemma{{"architectures", {"Gemma3ForConditionalGeneration"}}, {"text_config", small}};
  const auto gemma3 = read(gemma);
  ASSERT_TRUE(gemma3.ok()) << gemma3.status().message();
  EXPECT_EQ(gemma3->vocab_size, 262208);
  EXPECT_EQ(gemma3->num_kv_heads, 4);
  EXPECT_EQ(gemma3->layer(4).window, 1024);
  EXPECT_EQ(gemma3->layer(5).window, 0);
}

// As Qwen/Qwen3-VL-4B-Instruct has it, with smaller sizes. The parts of a rotation for images change no text.
TEST(ModelConfig, TheTextModelOfQwen3VlIsQwen3) {
  const json rope{{"mrope_interleaved", true}, {"mrope_section", {24, 20, 20}}, {"rope_type", "default"}};
  const json text = with(
      without(qwen3(), "architectures"),
      {{"model_type", "qwen3_vl_text"}, {"head_dim", 128}, {"rope_theta", 5000000}, {"rope_scaling", rope}});
  const json whole{{"architectures", {"Qwen3VLForConditionalGeneration"}},
                   {"model_type", "qwen3_vl"},
                   {"image_token_id", 151655},
                   {"video_token_id", 151656},
                   {"vision_start_token_id", 151652},
                   {"vision_end_token_id", 151653},
                   {"tie_word_embeddings", true},
                   {"vision_config", {{"depth", 2}, {"model_type", "qwen3_vl"}}},
                   {"text_config", text}};
  const auto config = read(whole);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->family, ModelFamily::kQwen3);
  EXPECT_EQ(config->rope.theta, 5e6);
  EXPECT_EQ(config->rope.scaling, RopeScaling());
  EXPECT_TRUE(config->tie_word_embeddings);
  const json newer = with(without(without(text, "rope_theta"), "rope_scaling"),
                          {{"rope_parameters", with(rope, {{"rope_theta", 4000000}})}});
  EXPECT_EQ(read(with(whole, {{"text_config", newer}}))->rope.theta, 4e6);
  expect_invalid(with(whole, {{"text_config", without(text, "rope_theta")}}), "rope_theta", "missing");
}

// moonshotai/Kimi-K2-Instruct names DeepSeek-V3's architecture and a type of its own.
TEST(ModelConfig, KimiK2IsDeepseekV3) {
  const auto config =
      read(with(family(ModelFamily::kDeepseekV3), {{"model_type", "kimi_k2"}, {"n_group", 1}}));
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->family, ModelFamily::kDeepseekV3);
  EXPECT_EQ(config->experts->groups, 1);
  expect_invalid(with(llama(), {{"model_type", "kimi_k2"}}), "model_type", "LlamaForCausalLM");
}

TEST(ModelConfig, KeysOfAnotherFamilyAreRefused) {
  // The class in transformers ignores them, other programs may not.
  expect_refused(with(llama(), {{"sliding_window", 64}}), "sliding_window", "Llama");
  expect_refused(with(llama(), {{"use_sliding_window", true}}), "use_sliding_window", "Llama");
  expect_refused(with(mistral(), {{"use_sliding_window", true}}), "use_sliding_window", "Mistral");
  EXPECT_TRUE(read(with(llama(), {{"sliding_window", nullptr}, {"use_sliding_window", false}})).ok());
  EXPECT_TRUE(read(with(llama(), {{"sliding_window", 128}})).ok()) << "as long as the context";
}

TEST(ModelConfig, HarmlessKeysAreIgnored) {
  const json harmless = {{"_name_or_path", "meta-llama/x"},
                         {"transformers_version", "4.46.0"},
                         {"auto_map", {{"AutoModelForCausalLM", "modeling.X"}}},
                         {"initializer_range", 0.02},
                         {"use_cache", true},
                         {"pad_token_id", 0},
                         {"unk_token_id", 0},
                         {"id2label", {{"0", "A"}}},
                         {"pretraining_tp", 2},
                         {"is_llama_config", true},
                         {"attention_dropout", 0.1},
                         {"_attn_implementation_autoset", true},
                         {"unsloth_version", "2025.1"},
                         {"num_nextn_predict_layers", 1},
                         {"max_window_layers", 28},
                         {"task_specific_params", json::object()},
                         {"temperature", 0.7},
                         {"do_sample", true}};
  for (const json& family : families()) {
    const auto config = read(with(family, harmless));
    EXPECT_TRUE(config.ok()) << config.status().message();
  }
}

std::vector<int64_t> windows(const json& config) {
  std::vector<int64_t> out;
  const auto read_config = read(config);
  EXPECT_TRUE(read_config.ok()) << read_config.status().message();
  if (read_config.ok())
    for (const LayerKind& layer : read_config->layers) out.push_back(layer.window);
  return out;
}
using WindowList = std::vector<int64_t>;

TEST(ModelConfig, AWindowMattersOnlyWhereItCuts) {
  EXPECT_EQ(windows(with(mistral(), {{"sliding_window", 64}})), (WindowList{64, 64}));
  EXPECT_EQ(windows(with(mistral(), {{"sliding_window", 128}})), (WindowList{0, 0}));
  EXPECT_EQ(windows(mistral()), (WindowList{0, 0}));
  // The Mistral class slides by 4096 where the key is missing, and everywhere, whatever layer_types says.
  const json silent = with(without(mistral(), "sliding_window"), {{"max_position_embeddings", 32768}});
  EXPECT_EQ(windows(silent), (WindowList{4096, 4096}));
  EXPECT_EQ(windows(with(silent, {{"layer_types", {"full_attention", "full_attention"}}})),
            (WindowList{4096, 4096}));
  for (const json& qwen : {qwen2(), qwen3()}) {
    EXPECT_EQ(windows(with(qwen, {{"use_sliding_window", false}, {"sliding_window", 64}})),
              (WindowList{0, 0}));
    const json slides =
        with(qwen, {{"use_sliding_window", true}, {"sliding_window", 64}, {"max_window_layers", 1}});
    EXPECT_EQ(windows(slides), (WindowList{0, 64}));
    EXPECT_EQ(windows(with(slides, {{"max_window_layers", 2}})), (WindowList{0, 0}));
    EXPECT_EQ(windows(with(slides, {{"sliding_window", nullptr}})), (WindowList{0, 0}));
    const json types = {"sliding_attention", "full_attention"};
    EXPECT_EQ(windows(with(slides, {{"layer_types", types}})), (WindowList{64, 0}));
    expect_invalid(with(qwen, {{"layer_types", types}, {"sliding_window", 64}}), "use_sliding_window",
                   "layer_types");
    EXPECT_TRUE(read(with(qwen, {{"layer_types", {"full_attention", "full_attention"}}})).ok());
    expect_refused(with(qwen, {{"layer_types", {"linear_attention", "full_attention"}}}), "layer_types",
                   "linear_attention");
  }
  for (const json& family : {llama(), mistral(), qwen2(), qwen3()})
    for (const json& types :
         {json::array(), json({"full_attention"}), json(std::vector<std::string>(3, "full_attention"))})
      expect_invalid(with(family, {{"layer_types", types}}), "layer_types", "2 layers");
  expect_refused(with(llama(), {{"layer_types", {"full_attention", "sliding_attention"}}}), "layer_types",
                 "Llama");
  const json moe =
      with(family(ModelFamily::kQwen3Moe), {{"use_sliding_window", true}, {"sliding_window", 64}});
  expect_refused(moe, "use_sliding_window", "Qwen3Moe");
}

TEST(ModelConfig, GemmaSlidesByPattern) {
  const json gemma2 = with(without(small_config("gemma2", "Gemma2ForCausalLM"), "hidden_act"),
                           {{"num_hidden_layers", 4}, {"sliding_window", 32}});
  EXPECT_EQ(windows(gemma2), (WindowList{32, 0, 32, 0}));
  const ModelConfig two = *read(gemma2);
  EXPECT_EQ(two.head_dim, 256);
  EXPECT_EQ(two.norm_place, NormPlace::kAround);
  EXPECT_TRUE(two.norm_adds_one && two.tie_word_embeddings);
  EXPECT_EQ(two.activation, Activation::kGeluTanh);
  EXPECT_EQ(two.scales,
            (ModelScales{.embedding = 8, .attention = 1.0 / 16, .attention_cap = 50, .logit_cap = 30}));
  // Null is no cap; a missing key is the class's.
  const json uncapped =
      with(gemma2, {{"attn_logit_softcapping", nullptr}, {"final_logit_softcapping", nullptr}});
  EXPECT_EQ(read(uncapped)->scales, (ModelScales{.embedding = 8, .attention = 1.0 / 16}));
  expect_refused(with(gemma2, {{"hidden_activation", "gelu"}}), "hidden_activation", "gelu");
  expect_refused(with(gemma2, {{"use_bidirectional_attention", true}}), "use_bidirectional_attention",
                 "true");
  // sqrt(72) is 8.4853; in bf16, as the class computes, 8.5.
  const json bf16 = with(gemma2, {{"hidden_size", 72}, {"torch_dtype", "bfloat16"}});
  EXPECT_EQ(read(bf16)->scales.embedding, 8.5);

  const json gemma3 = with(without(small_config("gemma3_text", "Gemma3ForCausalLM"), "hidden_act"),
                           {{"num_hidden_layers", 4},
                            {"sliding_window", 32},
                            {"sliding_window_pattern", 3},
                            {"rope_theta", 1e6},
                            {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}});
  const ModelConfig old_file = *read(gemma3);
  EXPECT_EQ(windows(gemma3), (WindowList{32, 32, 0, 32}));
  EXPECT_EQ(old_file.layer(0).rope, LayerRope::kLocal);
  EXPECT_EQ(old_file.layer(2).rope, LayerRope::kMain);
  EXPECT_EQ(old_file.rope.scaling, RopeScaling(LinearRopeScaling{8}));
  EXPECT_EQ(old_file.local_rope.theta, 1e4);
  json new_file = without(without(without(gemma3, "rope_scaling"), "rope_theta"), "sliding_window_pattern");
  new_file.update({{"_sliding_window_pattern", 3},
                   {"rope_parameters",
                    {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1e6}}},
                     {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}}}});
  const ModelConfig newer = *read(new_file);
  EXPECT_EQ(newer.rope, old_file.rope);
  EXPECT_EQ(newer.local_rope, old_file.local_rope);
  EXPECT_EQ(newer.layers, old_file.layers);
  // The class does not cap attention, whatever the key says.
  expect_refused(with(gemma3, {{"attn_logit_softcapping", 50.0}}), "attn_logit_softcapping", "50");
}

TEST(ModelConfig, LayersWithoutRotation) {
  const json smollm3 = with(small_config("smollm3", "SmolLM3ForCausalLM"), {{"num_hidden_layers", 4}});
  EXPECT_EQ(read(smollm3)->layer(3).rope, LayerRope::kNone);
  EXPECT_EQ(read(smollm3)->layer(2).rope, LayerRope::kMain);
  EXPECT_EQ(read(with(smollm3, {{"no_rope_layers", {0, 1, 1, 1}}}))->layer(0).rope, LayerRope::kNone);
  EXPECT_TRUE(read(smollm3)->tie_word_embeddings);
  for (const json& bad : {json({1, 1}), json({1, 1, 1, 2}), json("x")})
    expect_invalid(with(smollm3, {{"no_rope_layers", bad}}), "no_rope_layers", "4 layers");
}

TEST(ModelConfig, Experts) {
  const json base = {{"num_experts", 8},
                     {"num_experts_per_tok", 2},
                     {"moe_intermediate_size", 96},
                     {"shared_expert_intermediate_size", 64},
                     {"mlp_only_layers", {1}},
                     {"num_hidden_layers", 4},
                     {"decoder_sparse_step", 1}};
  const ModelConfig qwen = *read(with(small_config("qwen2_moe", "Qwen2MoeForCausalLM"), base));
  EXPECT_EQ(qwen.experts, (ExpertConfig{8, 2, 96, 64, false}));
  EXPECT_TRUE(qwen.layer(0).has_experts && !qwen.layer(1).has_experts && qwen.layer(3).has_experts);
  EXPECT_TRUE(qwen.qkv_bias && !qwen.o_bias);
  const ModelConfig step = *read(with(small_config("qwen2_moe", "Qwen2MoeForCausalLM"),
                                      with(base, {{"decoder_sparse_step", 2}, {"norm_topk_prob", true}})));
  EXPECT_TRUE(!step.layer(0).has_experts && step.layer(3).has_experts && step.experts->renormalise);
  const json mixtral = with(small_config("mixtral", "MixtralForCausalLM"),
                            {{"num_local_experts", 8}, {"num_experts_per_tok", 2}});
  EXPECT_EQ(read(mixtral)->experts, (ExpertConfig{8, 2, 172, 0, true}));
  EXPECT_EQ(read(without(mixtral, "rope_theta"))->rope.theta, 1e6);
  expect_invalid(with(mixtral, {{"num_experts_per_tok", 9}}), "num_experts_per_tok", "8");
  expect_invalid(without(mixtral, "num_local_experts"), "num_local_experts", "missing");
  expect_invalid(with(mixtral, {{"num_experts", 4}}), "num_experts", "contradicts");
  // transformers 5 writes one name, older versions the other.
  const json qwen3 = family(ModelFamily::kQwen3Moe);
  EXPECT_EQ(read(with(without(qwen3, "num_experts"), {{"num_local_experts", 4}}))->experts->count, 4);
  expect_invalid(with(qwen3, {{"mlp_only_layers", {2}}}), "mlp_only_layers", "2 layers");
  expect_refused(with(qwen3, {{"shared_expert_intermediate_size", 64}}), "shared_expert_intermediate_size",
                 "64");
}

TEST(ModelConfig, OtherModelsAreRefusedByName) {
  expect_refused(with(llama(), {{"architectures", {"GPT2LMHeadModel"}}}), "architectures", "GPT2LMHeadModel");
  expect_refused(with(llama(), {{"architectures", {"LlamaForSequenceClassification"}}}), "architectures",
                 "supported are LlamaForCausalLM");
  expect_refused(with(without(llama(), "architectures"), {{"model_type", "gpt2"}}), "model_type",
                 "is gpt2; supported are llama, mistral, ");
  expect_invalid(with(llama(), {{"model_type", "qwen2"}}), "model_type", "LlamaForCausalLM");
  expect_invalid(with(llama(), {{"architectures", json::array()}}), "architectures", "list of one");
  expect_invalid(without(without(llama(), "architectures"), "model_type"), "architectures", "missing");
  expect_refused(with(llama(), {{"hidden_act", "gelu"}}), "hidden_act", "gelu");
  expect_refused(with(llama(), {{"quantization_config", {{"quant_method", "bitsandbytes"}}}}),
                 "quantization_config", "bitsandbytes");
  expect_refused(with(llama(), {{"num_local_experts", 8}}), "num_local_experts", "mixture");
  expect_refused(with(qwen3(), {{"num_experts", 128}}), "num_experts", "mixture");
  expect_refused(with(llama(), {{"draft_vocab_size", 32000}}), "draft_vocab_size", "EAGLE");
  expect_refused(with(llama(), {{"torch_dtype", "float8_e4m3fn"}}), "torch_dtype", "bfloat16");
}

std::string text_of(const std::string& file) {
  std::ifstream in(source_dir() / file);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Families, TheDocumentationListsTheTable) {
  const std::string page = text_of("docs/families.md");
  size_t rows = 0;
  for (size_t at = page.find("ForCausalLM` |"); at != page.npos; at = page.find("ForCausalLM` |", at + 1))
    ++rows;
  EXPECT_EQ(rows, family_table().size());
  const auto configs = families();
  for (size_t i = 0; i < configs.size(); ++i) {
    const FamilyTraits& traits = family_table()[i];
    const auto config = read(with(configs[i], {{"num_hidden_layers", 8}}));
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(architecture_name(config->family), traits.architecture);
    const std::string row =
        fmt::format("| {} | `{}` | {} | {} | {} |", traits.title, traits.architecture, traits.models,
                    traits.special, traits.delta_nets == DeltaNets::kNone ? "CPU, CUDA" : "CPU");
    EXPECT_NE(page.find(row), page.npos) << row;
  }
  std::string readme = text_of("README.md");
  std::replace(readme.begin(), readme.end(), '\n', ' ');
  EXPECT_NE(readme.find(supported_titles()), readme.npos) << supported_titles();
}

json quantised(const json& quantization) { return with(llama(), {{"quantization_config", quantization}}); }

const json kGptq{
    {"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}, {"desc_act", true}, {"sym", true}};
const json kAwq{
    {"quant_method", "awq"}, {"bits", 4}, {"group_size", 128}, {"zero_point", true}, {"version", "gemm"}};
const json kFloat8{{"quant_method", "fp8"},
                   {"fmt", "e4m3"},
                   {"activation_scheme", "dynamic"},
                   {"weight_block_size", {128, 128}}};
json compressed(const json& weights = {}, const json& changes = {}) {
  const json group{{"targets", {"Linear"}},
                   {"weights", with({{"num_bits", 4},
                                     {"type", "int"},
                                     {"strategy", "group"},
                                     {"group_size", 128},
                                     {"symmetric", true},
                                     {"dynamic", false},
                                     {"observer", "minmax"}},
                                    weights.is_null() ? json::object() : weights)},
                   {"input_activations", nullptr}};
  return with({{"quant_method", "compressed-tensors"},
               {"format", "pack-quantized"},
               {"config_groups", {{"group_0", group}}},
               {"ignore", {"lm_head", "re:.*router"}}},
              changes.is_null() ? json::object() : changes);
}

TEST(QuantizationConfig, PublishedFormatsAreRead) {
  EXPECT_EQ(read(llama())->quantization, nullptr);
  EXPECT_EQ(read(quantised({{"quant_method", "outrider"}, {"weight_format", "int4"}}))->quantization,
            nullptr);
  const auto gptq = read(quantised(kGptq))->quantization;
  EXPECT_EQ(gptq->method, QuantMethod::kGptq);
  EXPECT_EQ(gptq->bits, 4);
  EXPECT_EQ(gptq->group, 128);
  EXPECT_TRUE(gptq->zero_is_less_one);
  EXPECT_FALSE(
      read(quantised(with(kGptq, {{"checkpoint_format", "gptq_v2"}})))->quantization->zero_is_less_one);
  EXPECT_EQ(read(quantised(with(kGptq, {{"group_size", -1}})))->quantization->group, 0);
  EXPECT_EQ(read(quantised(kAwq))->quantization->method, QuantMethod::kAwq);
  EXPECT_EQ(
      read(quantised({{"quant_method", "awq"}, {"w_bit", 4}, {"q_group_size", 64}}))->quantization->group,
      64);
  EXPECT_EQ(read(quantised(kFloat8))->quantization->block_columns, 128);
  const auto packed = read(quantised(compressed()))->quantization;
  const auto group = [&](const char* module) { return packed->group_of(module).value(); };
  ASSERT_NE(group("model.layers.0.mlp.up_proj"), nullptr);
  EXPECT_EQ(group("model.layers.0.mlp.up_proj")->group, 128);
  EXPECT_EQ(group("lm_head"), nullptr);
  EXPECT_EQ(group("model.layers.0.mlp.router"), nullptr);
  EXPECT_EQ(group("model.embed_tokens"), nullptr);
}

// As RedHatAI/Mistral-Small-3.1-24B-Instruct-2503-quantized.w4a16 names modules.
TEST(QuantizationConfig, ModulesOfATextModelHaveTheNamesOfItsCheckpoint) {
  const json ignored{"language_model.lm_head", "re:model\\.language_model.*router", "re:vision_tower.*",
                     "language_model.model.layers.1.mlp.up_proj"};
  const auto packed = read(quantised(compressed(nullptr, {{"ignore", ignored}})))->quantization;
  for (const char* module : {"lm_head", "model.layers.0.mlp.router", "model.layers.1.mlp.up_proj"})
    EXPECT_EQ(packed->group_of(module).value(), nullptr) << module;
  EXPECT_NE(packed->group_of("model.layers.0.mlp.up_proj").value(), nullptr);
}

TEST(QuantizationConfig, ExpressionsAreReadWithTheConfigAndBoundedWhenUsed) {
  for (const char* pattern : {"re:(unclosed", "re:[a-"}) {
    json config = quantised(compressed());
    config["quantization_config"]["ignore"] = {pattern};
    const std::string message = read(config).status().message();
    EXPECT_NE(message.find("\"ignore\": " + std::string(pattern)), message.npos) << message;
  }
  json config = quantised(compressed());
  config["quantization_config"]["ignore"] = {"re:(a|aa)+[cd]"};
  const auto slow = read(config);
  ASSERT_TRUE(slow.ok());
  const auto refused = slow->quantization->group_of(std::string(60, 'a') + "b");
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(refused.status().message().find("re:(a|aa)+[cd]"), std::string::npos);
}

// In every quantization format, an unknown key is refused at every level that has keys.
TEST(QuantizationConfig, UnknownKeysAreRefusedByName) {
  for (const json& known : {kGptq, kAwq, kFloat8, compressed()}) {
    expect_refused(quantised(with(known, {{"surprise", 3}})), "surprise", "not understood");
    EXPECT_TRUE(read(quantised(with(known, {{"surprise", nullptr}}))).ok());
  }
  expect_refused(quantised(compressed({{"surprise", 3}})), "surprise", "not understood");
  json group = compressed();
  group["config_groups"]["group_0"]["surprise"] = 3;
  expect_refused(quantised(group), "surprise", "not understood");
}

TEST(QuantizationConfig, WhatIsNotSupportedIsRefusedByName) {
  expect_refused(quantised(with(kGptq, {{"bits", 3}})), "bits", "4 and 8");
  expect_refused(quantised(with(kGptq, {{"dynamic", {{"+:.*down.*", {{"bits", 8}}}}}})), "dynamic", "down");
  expect_refused(quantised(with(kGptq, {{"checkpoint_format", "marlin"}})), "checkpoint_format", "gptq_v2");
  expect_refused(quantised(with(kAwq, {{"version", "gemv"}})), "version", "gemm");
  expect_refused(quantised(with(kAwq, {{"bits", 3}})), "bits", "AWQ");
  expect_refused(quantised(with(kFloat8, {{"weight_block_size", nullptr}})), "weight_block_size", "blocks");
  expect_refused(quantised(with(kFloat8, {{"activation_scheme", "static"}})), "activation_scheme", "dynamic");
  expect_refused(quantised(compressed({{"num_bits", 3}})), "num_bits", "4 and 8");
  expect_refused(quantised(compressed({{"strategy", "tensor_group"}})), "strategy", "channel");
  expect_refused(quantised(compressed({}, {{"format", "nvfp4-pack-quantized"}})), "format", "pack-quantized");
  expect_refused(quantised(compressed({}, {{"kv_cache_scheme", {{"num_bits", 8}}}})), "kv_cache_scheme",
                 "num_bits");
  expect_invalid(quantised(compressed({{"type", "float"}})), "type", "format");
  expect_invalid(quantised({{"quant_method", "gptq"}}), "bits", "missing");
  expect_invalid(quantised(with(kGptq, {{"group_size", 0}})), "group_size", "-1");
}

TEST(ModelConfig, SizesMustFitTogether) {
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                          "vocab_size", "max_position_embeddings"}) {
    expect_invalid(without(llama(), key), key, "missing");
    for (const json& bad :
         {json(0), json(-4), json(int64_t{1} << 40), json(UINT64_MAX), json(2.0), json("64")})
      expect_invalid(with(llama(), {{key, bad}}), key, "must be");
  }
  expect_invalid(with(llama(), {{"num_key_value_heads", 3}}), "num_key_value_heads", "does not divide");
  expect_invalid(with(llama(), {{"num_key_value_heads", 16}}), "num_key_value_heads", "does not divide");
  expect_invalid(with(llama(), {{"hidden_size", 65}}), "hidden_size", "multiple");
  expect_invalid(with(llama(), {{"hidden_size", 72}}), "head_dim", "even");
  expect_invalid(with(llama(), {{"head_dim", 7}}), "head_dim", "even");
  expect_invalid(with(llama(), {{"rms_norm_eps", 0}}), "rms_norm_eps", "between");
  expect_invalid(with(llama(), {{"rope_theta", -1}}), "rope_theta", "between");
  EXPECT_EQ(read(with(llama(), {{"head_dim", 12}}))->q_size(), 96);
}

TEST(ModelConfig, EosIsTheUnionOfBothFiles) {
  const json config = with(llama(), {{"eos_token_id", 9}, {"bos_token_id", 1}, {"torch_dtype", "bfloat16"}});
  const ModelConfig both = *read(config, R"({"eos_token_id": [7, 9, 8], "temperature": 0.6})");
  EXPECT_EQ(both.eos, (std::vector<TokenId>{TokenId(9), TokenId(7), TokenId(8)}));
  EXPECT_EQ(both.bos, TokenId(1));
  EXPECT_EQ(both.torch_dtype, Dtype::kBF16);
  EXPECT_EQ(read(config, "{}")->eos.size(), 1u);
  EXPECT_TRUE(read(llama())->eos.empty());
  EXPECT_EQ(read(with(llama(), {{"eos_token_id", {4, 5}}}), R"({"eos_token_id": 5})")->eos.size(), 2u);
  EXPECT_EQ(read(with(llama(), {{"dtype", "float16"}}))->torch_dtype, Dtype::kF16);
  expect_invalid(with(llama(), {{"eos_token_id", 300}}), "eos_token_id", "300");
  expect_invalid(with(llama(), {{"eos_token_id", {-1}}}), "eos_token_id", "ids");
  expect_invalid(with(llama(), {{"bos_token_id", 300}}), "bos_token_id", "299");
  const Result<ModelConfig> broken = read(config, R"({"eos_token_id": "x"})");
  ASSERT_FALSE(broken.ok());
  EXPECT_NE(broken.status().message().find("generation_config.json"), std::string::npos);
  EXPECT_FALSE(read(config, "{").ok());
}

TEST(ModelConfig, MissingOrBrokenFiles) {
  const TemporaryDirectory directory;
  EXPECT_EQ(read_model_config(directory / "nowhere").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(read_model_config(directory.path()).status().code(), StatusCode::kNotFound);
  directory.write("config.json", "[]");
  EXPECT_EQ(read_model_config(directory.path()).status().code(), StatusCode::kInvalidArgument);
  directory.write("config.json", R"({"hidden_size": 1, "hidden_size": 2})");
  EXPECT_EQ(read_model_config(directory.path()).status().code(), StatusCode::kMalformed);
}

TEST(ModelConfig, GoldenModels) {
  for (const auto& model : std::filesystem::directory_iterator(golden_models())) {
    const auto config = read_model_config(model.path());
    EXPECT_TRUE(config.ok()) << config.status().message();
  }
  const ModelConfig llama31 = *read_model_config(golden_models() / "llama3.1");
  EXPECT_EQ(llama31.vocab_size, 262);
  EXPECT_EQ(llama31.rope.scaling, RopeScaling(Llama3RopeScaling{8, 1, 4, 256}));
  EXPECT_EQ(llama31.eos, (std::vector<TokenId>{TokenId(257), TokenId(259), TokenId(2), TokenId(5)}));
  EXPECT_EQ(read_model_config(golden_models() / "qwen2")->head_dim, 8);
  EXPECT_EQ(read_model_config(golden_models() / "qwen3")->q_size(), 96);
  const ModelConfig transformers5 = *read_model_config(golden_models() / "llama-bias-sharded");
  EXPECT_EQ(transformers5.rope.theta, 10000);
  EXPECT_TRUE(transformers5.o_bias && transformers5.mlp_bias);
}

TEST(ModelConfig, PublishedConfigs) {
  const std::filesystem::path configs = test_data() / "configs";
  SKIP_WITHOUT(configs);
  const ModelConfig llama70 = *read_model_config(configs / "llama3-70B-162shards");
  EXPECT_EQ(llama70.vocab_size, 128262);
  EXPECT_EQ(llama70.num_layers, 80);
  EXPECT_EQ(llama70.head_dim, 128);
  EXPECT_EQ(llama70.eos, (std::vector<TokenId>{TokenId(128009), TokenId(128001)}));
  EXPECT_EQ(llama70.torch_dtype, Dtype::kF32);
  const ModelConfig qwen25 = *read_model_config(configs / "qwen2.5-14B-instruct");
  EXPECT_EQ(qwen25.family, ModelFamily::kQwen2);
  EXPECT_TRUE(qwen25.qkv_bias);
  EXPECT_EQ(qwen25.heads_per_kv_head(), 5);
  EXPECT_EQ(qwen25.torch_dtype, Dtype::kF16);
  const ModelConfig qwen3_17 = *read_model_config(configs / "qwen3-1.7B");
  EXPECT_EQ(qwen3_17.qk_norm, QkNorm::kHead);
  EXPECT_TRUE(qwen3_17.tie_word_embeddings);
  EXPECT_EQ(qwen3_17.rope.theta, 1e6);
  const ModelConfig tiny = *read_model_config(configs / "tinyllama-1.1B-chat");
  EXPECT_EQ(tiny.num_kv_heads, 4);
  EXPECT_EQ(tiny.torch_dtype, Dtype::kF32);
}

}  // namespace
}  // namespace outrider
