#include "draft_worker/model/preparation_policy.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace outrider {
namespace {

PreparationPolicy measured(double base_ns, double row_ns, int64_t verdict_ns) {
  PreparationPolicy policy;
  for (int i = 0; i < 200; ++i) {
    const int64_t rows = 1 + i % 8;
    policy.pass_took(rows, static_cast<int64_t>(base_ns + row_ns * static_cast<double>(rows)));
    policy.verdict_took(verdict_ns);
  }
  return policy;
}

TEST(PassCost, FitsALineAndNeverASlopeDown) {
  PassCost cost;
  for (int i = 0; i < 100; ++i) cost.observe(1 + i % 6, 1000 + 50 * (1 + i % 6));
  EXPECT_NEAR(cost.of(3), 1150, 1);
  EXPECT_NEAR(cost.of(12), 1600, 2);
  PassCost falling;
  for (int i = 0; i < 100; ++i) falling.observe(1 + i % 6, 1000 - 50 * (i % 6));
  EXPECT_GE(falling.of(10), falling.of(2));
}

TEST(PreparationPolicy, UnlikelyRowsAreLeftOutWhereRowsCost) {
  const std::vector<double> probabilities{0.4, 0.2, 0.01, 0.01, 0.01};
  EXPECT_EQ(measured(100, 100, 1'000'000).rows_worth(probabilities, 0), 1u);
  EXPECT_EQ(measured(1000, 100, 1'000'000).rows_worth(probabilities, 0), 2u);
  EXPECT_EQ(measured(1000, 1, 1'000'000).rows_worth(probabilities, 0), 5u);
}

TEST(PreparationPolicy, NoPassIsBegunThatWouldHoldUpTheVerdict) {
  const auto policy = measured(1000, 100, 100'000);
  const std::vector<double> probabilities{0.3, 0.1};
  EXPECT_GT(policy.rows_worth(probabilities, 10'000), 0u);
  EXPECT_EQ(policy.rows_worth(probabilities, 99'900), 0u);
  EXPECT_TRUE(policy.verdict_is_due(99'900));
  EXPECT_FALSE(policy.verdict_is_due(300'000));
}

TEST(PreparationPolicy, StopsWherePreparingSlowsRoundsAndKeepsTrying) {
  for (const bool harmful : {false, true}) {
    PreparationPolicy policy;
    int prepared = 0;
    constexpr int kRounds = 480;
    for (int i = 0; i < kRounds; ++i) {
      const bool prepare = policy.prepare_next();
      prepared += prepare;
      policy.round_took(prepare, prepare == harmful ? 1500 : 1000);
    }
    if (harmful) {
      EXPECT_LT(prepared, 40);
      EXPECT_GT(prepared, 20);  // the first trials, and now and then another
    } else {
      EXPECT_GT(prepared, kRounds - 40);
    }
  }
}

// A pause of the machine now and then says nothing about preparing, which is a tenth faster here.
TEST(PreparationPolicy, AHiccupDoesNotStopIt) {
  PreparationPolicy policy;
  int prepared = 0;
  for (int round = 0; round < 1000; ++round) {
    const bool prepares = policy.prepare_next();
    prepared += prepares;
    policy.round_took(prepares, round % 100 == 50 ? 5'000'000 : prepares ? 900'000 : 1'000'000);
  }
  EXPECT_GT(prepared, 950);
}

// Steps whose prepared draft hits take half as long as steps that miss, and half of them hit. The means of a
// few steps vary around the true gain of preparation, which is a tenth.
TEST(PreparationPolicy, ChanceDoesNotStopIt) {
  int prepared = 0;
  std::mt19937 random(1);
  for (int run = 0; run < 20; ++run) {
    PreparationPolicy policy;
    for (int round = 0; round < 500; ++round) {
      const bool prepares = policy.prepare_next();
      prepared += prepares;
      policy.round_took(prepares, !prepares ? 840'000 : random() % 2 == 0 ? 500'000 : 1'000'000);
    }
  }
  EXPECT_GT(prepared, 20 * 485);
}

}  // namespace
}  // namespace outrider
