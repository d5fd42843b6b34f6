// Every index of every loop is done exactly once, whoever takes it.
#include "transformer/model/thread_pool.h"

#include <gtest/gtest.h>

#include <chrono>

namespace outrider {
namespace {

class Pools : public ::testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(Pools, EveryIndexOnce) {
  ThreadPool pool(std::get<0>(GetParam()), std::get<1>(GetParam()));
  EXPECT_EQ(pool.size(), std::get<0>(GetParam()));
  for (int repetition = 0; repetition < 200; ++repetition)
    for (int64_t count : {0, 1, 2, 7, 100, 1000})
      for (int64_t grain : {1, 3, 64}) {
        std::vector<int> done(static_cast<size_t>(count));  // plain: two threads on one index would be a race
        pool.parallel_for(count, grain, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) ++done[static_cast<size_t>(i)];
        });
        for (int times : done) ASSERT_EQ(times, 1) << count << " " << grain;
      }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Pools, ::testing::Combine(::testing::Values(1, 2, 5), ::testing::Bool()));

// A thread that sleeps over its first chunk leaves the others to the rest of the pool.
TEST(ThreadPool, ASlowThreadDoesNotKeepTheLoopToItself) {
  ThreadPool pool(2);
  const auto owner = std::this_thread::get_id();
  std::atomic<int64_t> by_worker = 0;
  pool.parallel_for(1000, 1, [&](int64_t begin, int64_t end) {
    if (std::this_thread::get_id() == owner)
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    else
      by_worker += end - begin;
  });
  EXPECT_GT(by_worker, 500) << "half of it would be a fixed split";
}

}  // namespace
}  // namespace outrider
