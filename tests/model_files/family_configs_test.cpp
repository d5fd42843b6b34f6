// Keys of config.json that only some families have.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "model_files/model_config.h"
#include "model_files/model_size.h"
#include "model_files/quantization_config.h"
#include "tests/model_files/small_configs.h"

namespace outrider {
namespace {

using namespace small_configs;  // NOLINT: the names of these tests

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

json gemma4(const json& changes) {
  const json rope{
      {"full_attention",
       {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}, {"rope_theta", 1000000.0}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 10000.0}}}};
  return with(without(family(ModelFamily::kGemma4), "sliding_window"),
              with({{"num_hidden_layers", 10},
                    {"head_dim", 32},
                    {"global_head_dim", 64},
                    {"hidden_activation", "gelu_pytorch_tanh"},
                    {"hidden_size_per_layer_input", 16},
                    {"final_logit_softcapping", 30.0},
                    {"sliding_window", 32},
                    {"rope_parameters", rope}},
                   changes));
}

// As google/gemma-4-E2B-it has it, with smaller sizes: the text model of one for images and sound.
TEST(ModelConfig, Gemma4SharesKeysAndHasAnInputOfEachLayer) {
  json types = json::array();
  for (int i = 0; i < 10; ++i) types.push_back(i % 5 == 4 ? "full_attention" : "sliding_attention");
  const json text = gemma4({{"layer_types", types},
                            {"num_kv_shared_layers", 5},
                            {"use_double_wide_mlp", true},
                            {"attention_k_eq_v", false},
                            {"enable_moe_block", false},
                            {"num_global_key_value_heads", nullptr},
                            {"num_experts", nullptr},
                            {"top_k_experts", nullptr},
                            {"moe_intermediate_size", nullptr}});
  const json whole{{"architectures", {"Gemma4ForConditionalGeneration"}},
                   {"model_type", "gemma4"},
                   {"audio_config", {{"model_type", "gemma4_audio"}}},
                   {"audio_token_id", 258881},
                   {"boa_token_id", 256000},
                   {"boi_token_id", 255999},
                   {"dtype", "bfloat16"},
                   {"eoa_token_index", 258883},
                   {"eoi_token_id", 258882},
                   {"eos_token_id", {1, 106}},
                   {"image_token_id", 258880},
                   {"initializer_range", 0.02},
                   {"tie_word_embeddings", true},
                   {"video_token_id", 258884},
                   {"vision_config", {{"model_type", "gemma4_vision"}}},
                   {"vision_soft_tokens_per_image", 280},
                   {"text_config", without(text, "architectures")}};
  for (const json& file : {text, whole}) {
    const auto config = read(file);
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->family, ModelFamily::kGemma4);
    EXPECT_EQ(config->layer_input_size, 16);
    EXPECT_TRUE(config->values_normed && config->scales_layers && config->tie_word_embeddings);
    EXPECT_FALSE(config->norm_adds_one);
    EXPECT_EQ(config->scales.attention, 1);
    EXPECT_EQ(config->scales.logit_cap, 30);
    for (const int64_t i : {0, 3, 5, 8}) {
      EXPECT_EQ(config->layer(i).window, 32) << i;
      EXPECT_EQ(config->layer(i).head_dim, 0) << i;
    }
    for (const int64_t i : {4, 9}) {
      EXPECT_EQ(config->layer(i).window, 0) << i;
      EXPECT_EQ(config->layer(i).head_dim, 64) << i;
    }
    for (const int64_t i : {3, 4}) EXPECT_EQ(config->layer(i).kv_of, -1) << i;
    for (const int64_t i : {5, 6, 7, 8}) EXPECT_EQ(config->layer(i).kv_of, 3) << i;
    EXPECT_EQ(config->layer(9).kv_of, 4);
    EXPECT_EQ(config->layer(4).intermediate_size, 0);
    EXPECT_EQ(config->layer(5).intermediate_size, 344);
    EXPECT_EQ(config->rope.dims, 64);
    EXPECT_EQ(config->rope.scaling, RopeScaling(ProportionalRopeScaling{.share = 0.25}));
    EXPECT_EQ(config->local_rope.dims, 32);
    // Keys and values of four layers with 32 a head and one with 64; the other five have none of their own.
    EXPECT_EQ(size_of(*config).kv_numbers, 2 * 2 * (4 * 32 + 64));
    EXPECT_EQ(beyond_plain_layers(*config), "an embedding for each layer");
  }
  const json by_default = with(without(text, "layer_types"), {{"num_kv_shared_layers", 0}});
  for (int64_t i = 0; i < 10; ++i)
    EXPECT_EQ(read(by_default)->layer(i).window, i == 5 || i == 9 ? 0 : 32)
        << i << ": the last layer sees all";
  EXPECT_EQ(read(with(text, {{"hidden_size_per_layer_input", nullptr}}))->layer_input_size, 0);
  EXPECT_EQ(read(without(text, "hidden_size_per_layer_input"))->layer_input_size, 256);
  expect_refused(with(text, {{"vocab_size_per_layer_input", 200}}), "vocab_size_per_layer_input", "300");
  expect_refused(with(text, {{"use_bidirectional_attention", "all"}}), "use_bidirectional_attention",
                 "vision");
  expect_refused(with(text, {{"rope_theta", 10000.0}}), "rope_theta", "rope_parameters");
  expect_refused(with(text, {{"query_pre_attn_scalar", 256}}), "query_pre_attn_scalar", "256");
  expect_refused(with(text, {{"layer_types", json(10, "sliding_attention")}}), "layer_types", "last layer");
  expect_invalid(with(text, {{"num_kv_shared_layers", 6}}), "num_kv_shared_layers", "keys of its own");
  expect_invalid(with(text, {{"num_kv_shared_layers", 10}}), "num_kv_shared_layers", "9");
  expect_invalid(with(text, {{"global_head_dim", 63}}), "global_head_dim", "even");
  expect_refused(with(llama(), {{"num_kv_shared_layers", 1}}), "num_kv_shared_layers", "not understood");
  expect_refused(with(llama(), {{"rope_scaling", {{"rope_type", "proportional"}}}}), "rope_type",
                 "proportional");
}

// As google/gemma-4-31B-it has it, with smaller sizes, and as transformers 5 writes it again.
TEST(ModelConfig, Gemma4MakesValuesOfKeys) {
  const json published = gemma4({{"num_hidden_layers", 6},
                                 {"attention_k_eq_v", true},
                                 {"hidden_size_per_layer_input", 0},
                                 {"num_global_key_value_heads", 1},
                                 {"num_kv_shared_layers", 0},
                                 {"use_bidirectional_attention", "vision"}});
  const json saved = with(without(without(published, "global_head_dim"), "num_global_key_value_heads"),
                          {{"per_layer_config", {{"5", {{"head_dim", 64}, {"num_key_value_heads", 1}}}}}});
  for (const json& file : {published, saved}) {
    const auto config = read(file);
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->layers[4], (LayerKind{.window = 32, .rope = LayerRope::kLocal}));
    EXPECT_EQ(config->layers[5], (LayerKind{.head_dim = 64, .kv_heads = 1, .values_are_keys = true}));
    EXPECT_EQ(size_of(*config).kv_numbers, 2 * (5 * 2 * 32 + 64));
    EXPECT_EQ(beyond_plain_layers(*config), "norms of values");
  }
  EXPECT_EQ(read(with(published, {{"attention_k_eq_v", false}}))->layers[5], (LayerKind{.head_dim = 64}))
      << "as its class reads the number of KV heads";
  expect_invalid(with(published, {{"num_global_key_value_heads", 3}}), "num_global_key_value_heads",
                 "divide");
  expect_refused(with(saved, {{"global_head_dim", 64}}), "global_head_dim", "per_layer_config");
  expect_refused(with(saved, {{"per_layer_config", {{"5", {{"sliding_window", 8}}}}}}), "sliding_window",
                 "understood");
  expect_refused(with(saved, {{"per_layer_config", {{"4", {{"head_dim", 64}}}}}}), "per_layer_config",
                 "type");
  expect_invalid(with(saved, {{"per_layer_config", {{"6", {{"head_dim", 64}}}}}}), "6", "layers");
}

// As google/gemma-4-26B-A4B-it has it, with smaller sizes.
TEST(ModelConfig, Gemma4HasExpertsBesideAnMlp) {
  const json moe = gemma4({{"num_hidden_layers", 6},
                           {"attention_k_eq_v", true},
                           {"enable_moe_block", true},
                           {"hidden_size_per_layer_input", 0},
                           {"moe_intermediate_size", 24},
                           {"num_experts", 8},
                           {"num_global_key_value_heads", 1},
                           {"top_k_experts", 3}});
  const auto config = read(moe);
  ASSERT_TRUE(config.ok()) << config.status().message();
  ASSERT_TRUE(config->experts.has_value());
  EXPECT_EQ(config->experts->count, 8);
  EXPECT_EQ(config->experts->chosen, 3);
  EXPECT_EQ(config->experts->intermediate_size, 24);
  EXPECT_TRUE(config->experts->beside_mlp && config->experts->renormalise);
  EXPECT_TRUE(config->layer(0).has_experts && config->layer(5).has_experts);
  const auto dense = read(with(moe, {{"enable_moe_block", false}}));
  EXPECT_FALSE(dense->experts.has_value());
  EXPECT_FALSE(dense->layer(0).has_experts);
  // Each layer has the experts, the router with its scale, scales of experts, and three norms.
  EXPECT_EQ(size_of(*config).parameters - size_of(*dense).parameters,
            6 * (8 * 3 * 24 * 64 + 8 * 64 + 64 + 8 + 3 * 64));
  expect_invalid(with(moe, {{"top_k_experts", 9}}), "top_k_experts", "8");
  expect_invalid(without(moe, "num_experts"), "num_experts", "missing");
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

}  // namespace
}  // namespace outrider
