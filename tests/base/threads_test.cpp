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
    together.arrive_and_wait();  // ends only with all of them
    sum += i;
  });
  EXPECT_EQ(sum, 15);
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
