// Measurements that a target makes before it joins.
#include <gtest/gtest.h>

#include <array>
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

TEST(WarmUp, AllRanksHaveTheTimesOfPassesAndAnEmptyCache) {
  for (const int ranks : {1, 2}) {
    const RoleSettings settings = demo_settings(ranks);
    const Preparation prepared = prepare(settings).value();
    const auto group = make_thread_collectives(ranks);
    std::vector<LoadedModel> loaded(static_cast<size_t>(ranks));
    {
      std::vector<std::jthread> threads;
      for (int r = 0; r < ranks; ++r)
        threads.emplace_back([&, r] {
          const auto at = static_cast<size_t>(r);
          loaded[at] = load_target(settings, prepared, {}, *group[at]).value();
        });
    }
    for (const LoadedModel& rank : loaded) {
      const PassTimes &times = rank.pass_times, &first = loaded.front().pass_times;
      EXPECT_GT(times.row_ns, 0);
      EXPECT_EQ(times.row_ns, first.row_ns);
      ASSERT_EQ(times.by_rows.size(), 5u);
      for (size_t i = 0; i < 5; ++i) {
        EXPECT_EQ(times.by_rows[i].rows, (std::array{2, 3, 5, 9, 17})[i]);
        EXPECT_GT(times.by_rows[i].passes, 0);
        EXPECT_EQ(times.by_rows[i].passes, first.by_rows[i].passes);
      }
      EXPECT_EQ(rank.model->kv().free_blocks(), rank.model->kv().num_blocks());
    }
  }
}

// Rows for which the model has no room are not measured.
TEST(WarmUp, MeasuresNoMoreRowsThanThereIsRoomFor) {
  RoleSettings settings = demo_settings(1);
  settings.models.max_model_len = 4;
  const Preparation prepared = prepare(settings).value();
  const auto alone = make_single_collectives();
  const auto loaded = load_target(settings, prepared, {}, *alone);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  ASSERT_EQ(loaded->pass_times.by_rows.size(), 2u);
  EXPECT_EQ(loaded->pass_times.by_rows.back().rows, 3);
}

// A draft model is measured for a step and for a prefill.
TEST(WarmUp, ADraftModelHasTheTimeOfAStepAndOfAPrefill) {
  RoleSettings settings = demo_settings(1);
  settings.models.draft_model = (source_dir() / "launch/demo_pair/draft").string();
  const Preparation prepared = prepare(settings).value();
  const auto alone = make_single_collectives();
  const auto loaded = load_draft(settings, prepared, {}, *alone);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_GT(loaded->pass_times.row_ns, 0);
  EXPECT_GT(loaded->pass_times.prefill_token_ns, 0);
  ASSERT_EQ(loaded->pass_times.by_rows.size(), 1u);
  EXPECT_EQ(loaded->model->kv().free_blocks(), loaded->model->kv().num_blocks());
}

}  // namespace
}  // namespace outrider
