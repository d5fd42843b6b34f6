#include "coordinator/costs/answer_time.h"

#include <gtest/gtest.h>

#include <random>

namespace outrider {
namespace {

using std::chrono::microseconds;

struct Outcome {
  int needless = 0, lost = 0;
  double patience = 0;  // what is waited over what a link without losses makes usual
};

// Answers take 1 ms, one in eight up to 1.5 ms more and then half a draft of 1 ms more, too.
Outcome exchange(double loss) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> uniform;
  AnswerTime usual, time;
  Outcome outcome;
  for (int i = 0; i < 4000; ++i) {
    const bool slow = uniform(random) < 0.125;
    const microseconds link(1000 + (slow ? static_cast<int>(1500 * uniform(random)) : 0));
    const microseconds drafting(slow ? 1500 : 1000);
    const bool lost = uniform(random) < loss;
    if (i > 0) {
      const bool late = link + drafting > time.overdue(microseconds(1000));
      if (lost || late) time.repeated(!lost);
      if (i >= 2000) {
        outcome.needless += !lost && late;
        outcome.lost += lost;
        outcome.patience += std::chrono::duration<double>(time.overdue(microseconds(1000))) /
                            std::chrono::duration<double>(usual.overdue(microseconds(1000))) / 2000;
      }
    }
    time.observe(link);
    usual.observe(link);
  }
  return outcome;
}

TEST(AnswerTime, WithoutLossesHardlyAnythingIsRepeated) { EXPECT_LE(exchange(0).needless, 4); }

TEST(AnswerTime, RepetitionsInVainArePaidForByLostMessages) {
  const Outcome outcome = exchange(0.02);
  EXPECT_GT(outcome.needless, 0);
  EXPECT_LE(outcome.needless, outcome.lost);
}

TEST(AnswerTime, WhereMuchIsLostNothingIsWaitedForLonger) { EXPECT_LT(exchange(0.5).patience, 1.05); }

}  // namespace
}  // namespace outrider
