// The target groups that an event marks dirty.
#include "coordinator/agenda.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

Clock::time_point at(int ms) { return Clock::time_point(std::chrono::milliseconds(ms)); }

TEST(Agenda, KnowsWhoWasStirredAndWhoseTimeHasCome) {
  Agenda agenda(4);
  EXPECT_EQ(agenda.stirred(), (std::vector<int32_t>{0, 1, 2, 3})) << "nobody was looked at yet";
  agenda.settle(0, at(30));
  agenda.settle(2, at(10));
  agenda.settled_all();
  EXPECT_EQ(agenda.next(), at(10));
  agenda.wake(at(9));
  EXPECT_TRUE(agenda.stirred().empty());
  agenda.stir(3);
  agenda.wake(at(10));
  agenda.stir(1);
  agenda.stir(3);
  EXPECT_EQ(agenda.stirred(), (std::vector<int32_t>{1, 2, 3})) << "in order, each once";
  agenda.settle(2, at(40));
  agenda.settle(0, std::nullopt);
  agenda.settled_all();
  EXPECT_EQ(agenda.next(), at(40));
  agenda.stir(0);
  EXPECT_EQ(agenda.stirred_lately(), (std::vector<int32_t>{0, 1, 2, 3})) << "also who was at the last event";
  agenda.settled_all();
  EXPECT_EQ(agenda.stirred_lately(), std::vector<int32_t>{0});
}

}  // namespace
}  // namespace outrider
