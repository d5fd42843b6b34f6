#include "draft_worker/model/outcome_statistics.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

int guesses_at(const std::vector<Outcome>& outcomes, int32_t accepted) {
  int count = 0;
  for (const Outcome& outcome : outcomes) count += outcome.accepted == accepted;
  return count;
}

TEST(OutcomeStatistics, PicksBestFirstAndNoMoreThanTheBudget) {
  OutcomeStatistics statistics;
  for (int i = 0; i < 200; ++i) statistics.observe(5, i % 10 < 6 ? 5 : i % 5, i % 3);
  std::vector<Outcome> outcomes;
  for (int budget : {0, 1, 5, 12}) {
    statistics.pick(5, budget, outcomes);
    ASSERT_LE(outcomes.size(), static_cast<size_t>(budget));
    double sum = 0;
    for (size_t i = 0; i < outcomes.size(); ++i) {
      sum += outcomes[i].probability;
      if (i > 0) {
        EXPECT_GE(outcomes[i - 1].probability, outcomes[i].probability);
      }
    }
    EXPECT_LE(sum, 1 + 1e-9);
  }
  statistics.pick(5, 12, outcomes);
  EXPECT_EQ(outcomes.front().accepted, 5);  // the bump at full acceptance
  for (int n = 1; n < 5; ++n) EXPECT_LE(guesses_at(outcomes, n), guesses_at(outcomes, n - 1));
}

TEST(OutcomeStatistics, FollowsWhatWasObserved) {
  OutcomeStatistics statistics;
  for (int i = 0; i < 400; ++i)
    statistics.observe(4, 0, 1);  // always rejected at once, always the second guess
  EXPECT_LT(statistics.acceptance(), 0.05);
  EXPECT_GT(statistics.guess_probability(false, 1), 0.9);
  std::vector<Outcome> outcomes;
  statistics.pick(4, 1, outcomes);
  ASSERT_EQ(outcomes.size(), 1u);
  EXPECT_EQ(outcomes[0].accepted, 0);
  EXPECT_EQ(outcomes[0].rank, 1);
  EXPECT_GT(outcomes[0].probability, 0.85);
}

TEST(OutcomeStatistics, AGuessThatNeverComesTrueIsNotPrepared) {
  OutcomeStatistics statistics;
  for (int i = 0; i < 2000; ++i) statistics.observe(3, 3, kMaxGuesses);
  std::vector<Outcome> outcomes;
  statistics.pick(3, 8, outcomes);
  EXPECT_EQ(guesses_at(outcomes, 3), 0);
}

}  // namespace
}  // namespace outrider
