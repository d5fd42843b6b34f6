#include "model_files/model_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model_files/family.h"
#include "tests/model_files/small_configs.h"
#include "tests/model_files/test_data.h"

namespace outrider {
namespace {

using namespace small_configs;  // NOLINT: the names of these tests

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
  expect_refused(with(llama(), {{"draft_vocab_size", 32000}}), "draft_vocab_size", "--drafter eagle3");
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
                    traits.special, traits.varied_layers ? "CPU" : "CPU, CUDA");
    EXPECT_NE(page.find(row), page.npos) << row;
  }
  std::string readme = text_of("README.md");
  std::replace(readme.begin(), readme.end(), '\n', ' ');
  EXPECT_NE(readme.find(supported_titles()), readme.npos) << supported_titles();
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
