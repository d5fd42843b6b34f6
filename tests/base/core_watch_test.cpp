#include "base/core_watch.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

TEST(CoreWatch, ALookThatLostItsCoreIsTheLastForAWhile) {
  CoreWatch watch;
  CoreWatch::Clock::time_point now{std::chrono::hours(1)};
  watch.begin(now);
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(watch.may_look(now += microseconds(2)));
  EXPECT_TRUE(watch.may_look(now += microseconds(80))) << "an interrupt";
  EXPECT_FALSE(watch.may_look(now += milliseconds(3)));
  for (int i = 0; i < 9; ++i) {  // other waits meanwhile
    watch.begin(now += milliseconds(10));
    EXPECT_FALSE(watch.may_look(now += microseconds(2)));
  }
  watch.begin(now += milliseconds(10));
  EXPECT_TRUE(watch.may_look(now += microseconds(2)));
}

TEST(CoreWatch, TimeBetweenWaitsIsNotLost) {
  CoreWatch watch;
  CoreWatch::Clock::time_point now{std::chrono::hours(1)};
  watch.begin(now);
  EXPECT_TRUE(watch.may_look(now += microseconds(2)));
  watch.begin(now += milliseconds(50));  // it worked
  EXPECT_TRUE(watch.may_look(now += microseconds(2)));
}

}  // namespace
}  // namespace outrider
