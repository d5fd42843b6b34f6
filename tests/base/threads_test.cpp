// Threads that the system refuses. tests/support/refuse_threads.cpp, linked into this program, is the limit.
#include "base/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cstdlib>

namespace outrider {
namespace {

class Threads : public ::testing::Test {
 protected:
  static void allow(int most) { setenv("OUTRIDER_TEST_MOST_THREADS", std::to_string(most).c_str(), 1); }
  ~Threads() override { unsetenv("OUTRIDER_TEST_MOST_THREADS"); }
};

TEST_F(Threads, BodiesRunAtTheSameTime) {
  constexpr int kCount = 6;
  std::barrier together(kCount);
  std::atomic<int> sum{0};
  run_on_threads(kCount, [&](int i) {
    together.arrive_and_wait();  // returns only when all kCount threads have arrived
    sum += i;
  });
  EXPECT_EQ(sum, 15);
}

// Deeper than a thread of the usual size goes; as deep as it is compiled, without a call in the tail.
int64_t sum_to(int64_t n) {  // NOLINT(misc-no-recursion)
  volatile char room[512] = {};
  const int64_t rest = n == 0 ? 0 : sum_to(n - 1);
  return rest + n + room[0];
}

TEST_F(Threads, ADeepCallHasTheStackThatItAskedFor) {
  int64_t sum = 0;
  run_with_stack(size_t{256} << 20, [&] { sum = sum_to(50'000); });
  EXPECT_EQ(sum, int64_t{50'000} * 50'001 / 2);
  EXPECT_THROW(run_with_stack(size_t{1} << 20, [] { throw std::out_of_range("it"); }), std::out_of_range);
  allow(0);
  EXPECT_THROW(run_with_stack(size_t{1} << 20, [&] { sum = 0; }), NoThread);
  EXPECT_NE(sum, 0);
}

TEST_F(Threads, NoneRunsUnlessAllCan) {
  for (int most = 0; most < 5; ++most) {
    allow(most);
    std::atomic<int> ran{0};
    EXPECT_THROW(run_on_threads(6, [&](int) { ++ran; }), NoThread);
    EXPECT_EQ(ran, 0);
  }
  allow(5);
  std::atomic<int> ran{0};
  run_on_threads(6, [&](int) { ++ran; });
  EXPECT_EQ(ran, 6);
}

TEST_F(Threads, AnExceptionOfOneIsThrownWhenAllHaveEnded) {
  std::atomic<int> ended{0};
  EXPECT_THROW(run_on_threads(4,
                              [&](int i) {
                                if (i == 2) throw std::logic_error("two");
                                ++ended;
                              }),
               std::logic_error);
  EXPECT_EQ(ended, 3);
}

TEST_F(Threads, TheMessageNamesLimitsAndTheRemedy) {
  EXPECT_EQ(why_no_threads(3), "");
  allow(2);
  EXPECT_EQ(why_no_threads(2), "");
  const std::string why = why_no_threads(3);
  for (const char* part : {"no further thread can be started", "the limits are ", "--threads"})
    EXPECT_NE(why.find(part), std::string::npos) << why;
}

}  // namespace
}  // namespace outrider
