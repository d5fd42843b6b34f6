// The mix of types: which matrices get more bits, by the names of a GGUF file and of a directory.
#include "model/block_types.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <string>

namespace outrider {
namespace {

struct Types {
  Types(const ModelConfig& config, std::vector<std::string> all)
      : names(std::move(all)), types(*find_block_format("q4_k_m"), config, {names.begin(), names.end()}) {}
  Dtype of(const std::string& name, Place place = Place::kLayer, int64_t k = 1024) const {
    return *types.of(name, place, k);
  }
  std::vector<std::string> names;
  BlockTypes types;
};

// The layers of Llama 3.2 1B's file of Q4_K_M that llama.cpp gives 6 bits.
TEST(BlockTypes, ValuesAndTheWayDownGetMoreBits) {
  ModelConfig config;
  config.num_layers = 16;
  config.tie_word_embeddings = true;
  std::vector<std::string> names;
  for (int l = 0; l < 16; ++l) names.push_back(fmt::format("blk.{}.attn_v.weight", l));
  const Types types(config, names);
  const std::set<int64_t> with_six{0, 1, 4, 7, 10, 13, 14, 15};
  for (int64_t l = 0; l < 16; ++l) {
    const Dtype expected = with_six.contains(l) ? Dtype::kQ6K : Dtype::kQ4K;
    for (const char* name : {"blk.{}.attn_v.weight", "blk.{}.ffn_down.weight",
                             "model.layers.{}.mlp.down_proj.weight", "blk.{}.ffn_down_exps.weight"})
      EXPECT_EQ(types.of(fmt::format(fmt::runtime(name), l)), expected) << name << l;
    for (const char* name : {"blk.{}.attn_q.weight", "blk.{}.attn_k.weight", "blk.{}.ffn_up.weight",
                             "blk.{}.attn_output.weight"})
      EXPECT_EQ(types.of(fmt::format(fmt::runtime(name), l)), Dtype::kQ4K) << name << l;
  }
  EXPECT_EQ(types.of("token_embd.weight", Place::kVocabulary), Dtype::kQ6K) << "it is the head as well";
  EXPECT_EQ(types.of("blk.0.ffn_down.weight", Place::kLayer, 96), Dtype::kQ8_0);
  EXPECT_EQ(types.of("blk.0.ffn_up.weight", Place::kLayer, 96), Dtype::kQ5_0);
  EXPECT_FALSE(types.types.of("blk.0.ffn_up.weight", Place::kLayer, 40));
  config.tie_word_embeddings = false;
  EXPECT_EQ(types.of("token_embd.weight", Place::kVocabulary), Dtype::kQ4K);
  EXPECT_EQ(types.of("output.weight", Place::kVocabulary), Dtype::kQ6K);
}

// Only layers with values count for theirs; and attention is a small part of a mixture of eight.
TEST(BlockTypes, LayersWithoutAttentionAndMixtures) {
  ModelConfig config;
  config.num_layers = 16;
  const Types types(config, {"blk.3.attn_v.weight", "blk.7.attn_v.weight", "blk.11.attn_v.weight"});
  EXPECT_EQ(types.of("blk.3.attn_v.weight"), Dtype::kQ4K);
  EXPECT_EQ(types.of("blk.11.attn_v.weight"), Dtype::kQ6K);
  config.experts = ExpertConfig{.count = 8};
  EXPECT_EQ(types.of("blk.3.attn_v.weight"), Dtype::kQ8_0);
  EXPECT_EQ(types.of("blk.3.attn_k.weight"), Dtype::kQ8_0);
  EXPECT_EQ(types.of("blk.3.attn_output.weight"), Dtype::kQ5K);
  EXPECT_EQ(types.of("blk.0.ffn_down_exps.weight"), Dtype::kQ6K);
}

}  // namespace
}  // namespace outrider
