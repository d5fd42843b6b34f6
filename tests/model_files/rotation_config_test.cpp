// Rotations of positions in config.json, by old and new keys, plain and scaled.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "model_files/model_config.h"
#include "tests/model_files/small_configs.h"

namespace outrider {
namespace {

using namespace small_configs;  // NOLINT: the names of these tests

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

}  // namespace
}  // namespace outrider
