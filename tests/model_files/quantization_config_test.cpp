#include "model_files/quantization_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model_files/model_config.h"
#include "tests/model_files/small_configs.h"

namespace outrider {
namespace {

using namespace small_configs;  // NOLINT: the names of these tests

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

}  // namespace
}  // namespace outrider
