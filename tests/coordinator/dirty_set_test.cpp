// The target groups that an event marks dirty.
#include "coordinator/dirty_set.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

Clock::time_point at(int ms) { return Clock::time_point(std::chrono::milliseconds(ms)); }

TEST(DirtySet, KnowsWhoWasStirredAndWhoseTimeHasCome) {
  DirtySet dirty_set(4);
  EXPECT_EQ(dirty_set.dirty(), (std::vector<int32_t>{0, 1, 2, 3})) << "nobody was looked at yet";
  dirty_set.settle(0, at(30));
  dirty_set.settle(2, at(10));
  dirty_set.settled_all();
  EXPECT_EQ(dirty_set.next(), at(10));
  dirty_set.wake(at(9));
  EXPECT_TRUE(dirty_set.dirty().empty());
  dirty_set.mark_dirty(3);
  dirty_set.wake(at(10));
  dirty_set.mark_dirty(1);
  dirty_set.mark_dirty(3);
  EXPECT_EQ(dirty_set.dirty(), (std::vector<int32_t>{1, 2, 3})) << "in order, each once";
  dirty_set.settle(2, at(40));
  dirty_set.settle(0, std::nullopt);
  dirty_set.settled_all();
  EXPECT_EQ(dirty_set.next(), at(40));
  dirty_set.mark_dirty(0);
  EXPECT_EQ(dirty_set.lately_dirty(), (std::vector<int32_t>{0, 1, 2, 3})) << "also who was at the last event";
  dirty_set.settled_all();
  EXPECT_EQ(dirty_set.lately_dirty(), std::vector<int32_t>{0});
}

}  // namespace
}  // namespace outrider
