// Measurements that a target makes before it joins.
#include <gtest/gtest.h>

#include <cmath>
#include <thread>
#include <vector>

#include "start/load_models.h"
#include "tests/support/source_dir.h"

namespace outrider {
namespace {

RoleSettings demo_settings(int ranks) {
  RoleSettings settings{.models = {}, .speculation = {}, .quiet = true};
  settings.models.model = (source_dir() / "launch/demo_pair/target").string();
  settings.models.tensor_parallel_size = ranks;
  return settings;
}

TEST(WarmUp, AllRanksHaveThePriceOfARowAndAnEmptyCache) {
  for (const int ranks : {1, 2}) {
    const RoleSettings settings = demo_settings(ranks);
    const Preparation prepared = prepare(settings).value();
    const auto group = make_thread_collectives(ranks);
    std::vector<LoadedTarget> loaded(static_cast<size_t>(ranks));
    {
      std::vector<std::jthread> threads;
      for (int r = 0; r < ranks; ++r)
        threads.emplace_back([&, r] {
          const auto at = static_cast<size_t>(r);
          loaded[at] = load_target(settings, prepared, {}, *group[at]).value();
        });
    }
    for (const LoadedTarget& rank : loaded) {
      EXPECT_GE(rank.row_price, 0);
      EXPECT_TRUE(std::isfinite(rank.row_price));
      EXPECT_EQ(rank.row_price, loaded.front().row_price);
      EXPECT_EQ(rank.model->kv().free_blocks(), rank.model->kv().num_blocks());
    }
  }
}

// A model without room for the rows is not measured.
TEST(WarmUp, WithoutRoomNobodyKnowsThePrice) {
  RoleSettings settings = demo_settings(1);
  settings.models.max_model_len = 4;
  const Preparation prepared = prepare(settings).value();
  const auto alone = make_single_collectives();
  const auto loaded = load_target(settings, prepared, {}, *alone);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->row_price, kUnknownPrice);
}

}  // namespace
}  // namespace outrider
