// The comparison of --compare-plain over turns.
#include "requests/report.h"

#include <gtest/gtest.h>

#include <array>

namespace outrider::testing {
namespace {

TEST(PlainComparison, ASlowTurnSlowsBothSides) {
  // The second turn had half the clock.
  const std::array turns{PlainTurn{100, 200, 2.2}, PlainTurn{50, 100, 2.0}, PlainTurn{100, 200, 2.4}};
  const PlainComparison comparison = PlainComparison::of(turns, true);
  EXPECT_DOUBLE_EQ(comparison.speedup.value, 2);
  EXPECT_DOUBLE_EQ(comparison.speedup.low, 2);
  EXPECT_DOUBLE_EQ(comparison.speedup.high, 2);
  EXPECT_EQ(comparison.speedup.samples, 3);
  EXPECT_DOUBLE_EQ(comparison.plain_tokens_per_second, 100);
  EXPECT_DOUBLE_EQ(comparison.tokens_per_second, 200);
  EXPECT_DOUBLE_EQ(comparison.predicted_speedup, 2.2);
}

TEST(PlainComparison, OneTurnHasNoInterval) {
  const std::array turns{PlainTurn{100, 150, 1.6}};
  const PlainComparison comparison = PlainComparison::of(turns, false);
  EXPECT_DOUBLE_EQ(comparison.speedup.value, 1.5);
  EXPECT_FALSE(comparison.speedup.has_interval());
  EXPECT_FALSE(comparison.identical_output);
}

// A run that ends before its first token has no rate.
TEST(PlainComparison, ATurnWithoutARateTellsNothing) {
  const std::array turns{PlainTurn{0, 150, 0}, PlainTurn{100, 150, 1.6}};
  EXPECT_EQ(PlainComparison::of(turns, true).speedup.samples, 1);
  EXPECT_FALSE(PlainComparison::of({}, true).speedup.measured());
}

}  // namespace
}  // namespace outrider::testing
