// Every index of every loop runs exactly once, on any thread.
#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <ctime>
#include <thread>

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

// ---- helpers without a core ------------------------------------------------------------------------------

using std::chrono::milliseconds;

std::atomic<bool> helper_is_stuck = false, helper_may_go_on = false;

void be_stuck(int) {
  helper_is_stuck = true;
  const timespec pause{.tv_sec = 0, .tv_nsec = 1'000'000};
  while (!helper_may_go_on) nanosleep(&pause, nullptr);
}

// As on a machine whose cores are all taken: a helper that does not run between two loops holds up none.
TEST(ThreadPool, AHelperThatDoesNotRunHoldsUpNobody) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "signals come late under ThreadSanitizer";
#endif
  ThreadPool pool(2, true);
  const auto owner = std::this_thread::get_id();
  std::atomic<pthread_t> helper{};
  pool.parallel_for(2, 1, [&](int64_t, int64_t) {
    if (std::this_thread::get_id() != owner)
      helper = pthread_self();
    else
      while (helper == pthread_t{}) std::this_thread::yield();
  });
  std::signal(SIGUSR1, be_stuck);
  ASSERT_EQ(pthread_kill(helper, SIGUSR1), 0);
  while (!helper_is_stuck) std::this_thread::yield();

  std::atomic<bool> was_freed = false;
  std::jthread rescuer([&](const std::stop_token& stop) {  // or a pool that waits would wait for ever
    for (int i = 0; i < 10'000 && !stop.stop_requested(); ++i) std::this_thread::sleep_for(milliseconds(1));
    was_freed = !stop.stop_requested();
    helper_may_go_on = true;
  });
  std::atomic<int64_t> done = 0;
  for (int loop = 0; loop < 100; ++loop)
    pool.parallel_for(1000, 1, [&](int64_t begin, int64_t end) { done += end - begin; });
  rescuer.request_stop();
  rescuer.join();
  EXPECT_EQ(done, 100 * 1000);
  EXPECT_FALSE(was_freed) << "loops waited for a helper that had taken nothing";
  std::signal(SIGUSR1, SIG_DFL);
}

// A loop of which a helper did a piece late, by a scheduler slice.
void hold_up(HelperPause& pause, HelperPause::Clock::time_point& now) {
  now += milliseconds(4);
  pause.observe(std::chrono::microseconds(50), milliseconds(4), now);
}

TEST(HelperPause, FollowsAHelperThatLostItsCoreAndNoOrdinaryWait) {
  HelperPause pause;
  HelperPause::Clock::time_point now{std::chrono::hours(1)};
  EXPECT_FALSE(pause.is_on(now));
  pause.observe(milliseconds(300), milliseconds(30), now);  // the last pieces of a long prompt are long
  EXPECT_FALSE(pause.is_on(now));
  pause.observe(std::chrono::microseconds(20), std::chrono::microseconds(90), now);  // it was woken
  EXPECT_FALSE(pause.is_on(now));
  hold_up(pause, now);
  EXPECT_TRUE(pause.is_on(now + milliseconds(9)));
  EXPECT_FALSE(pause.is_on(now + milliseconds(10)));
}

// While every try is held up, trying takes little of the time; at rest the helpers are back soon.
TEST(HelperPause, GrowsWhileTheMachineStaysBusy) {
  HelperPause pause;
  HelperPause::Clock::time_point now{std::chrono::hours(1)};
  int held_up = 0;
  for (const auto end = now + std::chrono::seconds(10); now < end; now += milliseconds(1))
    if (!pause.is_on(now)) {
      hold_up(pause, now);
      ++held_up;
    }
  EXPECT_LT(held_up, 20);
  EXPECT_FALSE(pause.is_on(now + milliseconds(1000)));
  now += milliseconds(5000);
  hold_up(pause, now);  // after a long rest
  EXPECT_FALSE(pause.is_on(now + milliseconds(10)));
}

}  // namespace
}  // namespace outrider
