#include "base/shard.h"

#include <gtest/gtest.h>

#include "model/weights.h"

namespace outrider {
namespace {

TEST(Shard, LeavesTileTheUnits) {
  for (int64_t units : {1, 4, 6, 8, 14, 32, 40, 176}) {
    int64_t covered = 0;
    for (int leaf = 0; leaf < kLeaves; ++leaf) {
      EXPECT_EQ(leaf_units(units, leaf).begin, covered);
      covered = leaf_units(units, leaf).end;
    }
    EXPECT_EQ(covered, units);
    for (int tp_size : {1, 2, 4, 8}) {
      int64_t next = 0;
      for (int r = 0; r < tp_size; ++r) {
        EXPECT_EQ(shard_units(units, {r, tp_size}).begin, next);
        next = shard_units(units, {r, tp_size}).end;
      }
      EXPECT_EQ(next, units);
    }
  }
}

TEST(Shard, VocabularyOfAnySize) {
  for (int64_t vocab : {128262, 4096, 263, 5})
    for (int tp_size : {1, 2, 4, 8}) {
      int64_t next = 0;
      for (int r = 0; r < tp_size; ++r) {
        const IndexRange range = vocab_range(vocab, {r, tp_size});
        EXPECT_EQ(range.begin, next);
        next = range.end;
      }
      EXPECT_EQ(next, vocab);
    }
}

TEST(Shard, KvHeadsAreReplicatedWhereNeeded) {
  // 14 query heads, 2 KV heads, four ranks: heads [0,3) [3,7) [7,10) [10,14), and 0..6 read the first KV
  // head.
  EXPECT_EQ(kv_heads_of(shard_units(14, {0, 4}), 14, 2), (IndexRange{0, 1}));
  EXPECT_EQ(kv_heads_of(shard_units(14, {1, 4}), 14, 2), (IndexRange{0, 1}));
  EXPECT_EQ(kv_heads_of(shard_units(14, {2, 4}), 14, 2), (IndexRange{1, 2}));
  EXPECT_EQ(kv_heads_of({5, 9}, 14, 2), (IndexRange{0, 2}));
  EXPECT_EQ(kv_heads_of({3, 3}, 14, 2).size(), 0);
}

TEST(Shard, PlanOfAnAwkwardShape) {
  ModelConfig config;
  config.num_heads = 14;
  config.num_kv_heads = 2;
  config.head_dim = 8;
  config.intermediate_size = 172;  // five whole units of 32 columns and one of 12
  config.vocab_size = 262;
  const ShardPlan plan(config, {1, 2});
  EXPECT_EQ(plan.query_heads, (IndexRange{7, 14}));
  EXPECT_EQ(plan.attention_leaf_ends, (std::vector<int64_t>{8, 24, 40, 56}));
  EXPECT_EQ(plan.mlp_columns, (IndexRange{96, 172}));
  EXPECT_EQ(plan.mlp_leaf_ends, (std::vector<int64_t>{0, 32, 64, 76}));
}

}  // namespace
}  // namespace outrider
