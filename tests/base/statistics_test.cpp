#include "base/statistics.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

TEST(Median, IsTheMiddleAndZeroOfNothing) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({9, 1, 5}), 5);
}

// Two turns once reported the larger.
TEST(Median, OfAnEvenCountIsTheMeanOfTheTwoInTheMiddle) {
  EXPECT_EQ(median({2, 1}), 1.5);
  EXPECT_EQ(median({8, 1, 2, 4}), 3);
  EXPECT_EQ(median({5, 5, 5, 5, 1, 9}), 5);
}

TEST(Spread, KeepsTheExtremes) {
  const Spread spread = Spread::of({4, 1, 7});
  EXPECT_EQ(spread.median, 4);
  EXPECT_EQ(spread.low, 1);
  EXPECT_EQ(spread.high, 7);
  EXPECT_EQ(Spread::of({4, 1}).median, 2.5);
  EXPECT_EQ(Spread::of({}).median, 0);
}

}  // namespace
}  // namespace outrider
