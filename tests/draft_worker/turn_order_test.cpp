// Turns of several sessions at one draft worker. Nothing is measured: the tests say how long a turn took.
#include "draft_worker/turn_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace outrider::testing {
namespace {

using namespace std::chrono_literals;
using Time = TurnOrder::Time;

// Gives turns for `total`; every session's turn takes its own time. Returns the time each got.
std::vector<Time> give_turns(TurnOrder& order, const std::vector<Time>& turn, Time total) {
  std::vector<Time> got(turn.size(), Time(0));
  for (Time given(0); given < total;) {
    const auto session = order.next();
    if (!session) break;
    order.charge(*session, turn[*session]);
    got[*session] += turn[*session];
    given += turn[*session];
  }
  return got;
}

TEST(TurnOrder, SharesTimeByWeight) {
  TurnOrder order({2, 1, 1});
  for (size_t s = 0; s < 3; ++s) order.wait(s);
  EXPECT_EQ(give_turns(order, {1ms, 1ms, 1ms}, 400ms), (std::vector<Time>{200ms, 100ms, 100ms}));
}

// The time counts, not the number of turns: a session with long prompts gets fewer turns.
TEST(TurnOrder, SharesTimeAndNotTurns) {
  TurnOrder order({1, 1});
  order.wait(0);
  order.wait(1);
  const auto got = give_turns(order, {50ms, 2ms}, 1000ms);
  EXPECT_EQ(got[0], 500ms);
  EXPECT_EQ(got[1], 500ms);
}

TEST(TurnOrder, AnIdleShareIsUsedByTheOthers) {
  TurnOrder order({8, 1, 1});
  EXPECT_FALSE(order.next());
  order.wait(1);
  order.wait(2);
  EXPECT_EQ(give_turns(order, {1ms, 1ms, 1ms}, 100ms), (std::vector<Time>{0ms, 50ms, 50ms}));
  order.leave(2);
  EXPECT_EQ(give_turns(order, {1ms, 1ms, 1ms}, 100ms), (std::vector<Time>{0ms, 100ms, 0ms}));
  order.leave(1);
  EXPECT_FALSE(order.next());
}

// Idle time is not saved up: otherwise a session that comes back would hold up the others for as long.
TEST(TurnOrder, WhoComesBackGetsItsShareFromNowOn) {
  TurnOrder order({1, 1});
  order.wait(0);
  give_turns(order, {1ms, 1ms}, 10'000ms);
  order.wait(1);
  EXPECT_EQ(give_turns(order, {1ms, 1ms}, 100ms), (std::vector<Time>{50ms, 50ms}));
}

// A session that was alone may use all time, and waits no longer for it later.
TEST(TurnOrder, TimeThatNobodyElseWantedCostsNothingLater) {
  TurnOrder order({1, 1});
  order.wait(0);
  order.wait(1);
  give_turns(order, {1ms, 1ms}, 10ms);
  order.leave(1);
  give_turns(order, {1ms, 1ms}, 10'000ms);
  order.leave(0);
  order.wait(1);
  order.wait(0);
  const auto got = give_turns(order, {1ms, 1ms}, 100ms);
  EXPECT_NEAR(static_cast<double>(got[0].count()), 50e6, 1e6);
}

// A session that begins to wait has its turn after at most one turn of each other session, whatever those did
// before.
TEST(TurnOrder, WhoBeginsToWaitWaitsForOneTurnOfEachOther) {
  for (const double weight : {0.25, 1.0, 4.0}) {
    for (int before = 1; before < 60; ++before) {
      TurnOrder order({weight, 3, 1, 2});
      for (size_t s = 1; s < 4; ++s) order.wait(s);
      for (int i = 0; i < before; ++i) order.charge(*order.next(), Time(1000 * (1 + i % 7)));
      order.wait(0);
      std::map<size_t, int> turns;
      for (auto s = order.next(); *s != 0; s = order.next()) {
        EXPECT_LE(++turns[*s], 1) << "session " << *s << " after " << before << " turns";
        order.charge(*s, 5us);
      }
    }
  }
}

// A long prompt of one session holds up the steps of another by one chunk, and then not again until the other
// used as much time.
TEST(TurnOrder, ALongPromptIsReadBetweenTheStepsOfOthers) {
  TurnOrder order({1, 1});
  order.wait(0);  // reads a prompt in chunks of 100 ms
  order.wait(1);  // drafts in steps of 10 ms
  int steps_in_a_row = 0, chunks_in_a_row = 0;
  std::vector<int> runs;
  for (int i = 0; i < 110; ++i) {
    const size_t s = *order.next();
    order.charge(s, s == 0 ? 100ms : 10ms);
    if (s == 1) {
      ++steps_in_a_row;
      chunks_in_a_row = 0;
    } else {
      EXPECT_LE(++chunks_in_a_row, 1);
      runs.push_back(std::exchange(steps_in_a_row, 0));
    }
  }
  ASSERT_GE(runs.size(), 9u);
  for (size_t i = 2; i < runs.size(); ++i) EXPECT_EQ(runs[i], 10);
}

TEST(TurnOrder, WhoLeavesWhileItWaitsIsNotServed) {
  TurnOrder order({1, 1, 1});
  for (size_t s = 0; s < 3; ++s) order.wait(s);
  order.charge(*order.next(), 1ms);
  order.leave(1);
  for (int i = 0; i < 20; ++i) {
    const size_t s = *order.next();
    EXPECT_NE(s, 1u);
    order.charge(s, 1ms);
  }
  EXPECT_EQ(order.used(1), 0ms);
  order.wait(1);  // it has joined again
  order.leave(2);
  order.charge(*order.next(), 1ms);
  EXPECT_EQ(order.used(1), 1ms);
}

// Turns that a coarse clock cannot measure go round all the same.
TEST(TurnOrder, TurnsWithoutTimeGoRound) {
  TurnOrder order({1, 5, 1});
  for (size_t s = 0; s < 3; ++s) order.wait(s);
  std::vector<size_t> turns;
  for (int i = 0; i < 6; ++i) turns.push_back(*order.next());
  EXPECT_EQ(turns, (std::vector<size_t>{0, 1, 2, 0, 1, 2}));
}

TEST(PartsByWeight, AreWholeAndSumUp) {
  EXPECT_EQ(parts_by_weight(8, {2, 1, 1}), (std::vector<int64_t>{4, 2, 2}));
  EXPECT_EQ(parts_by_weight(8, {1, 1, 1}), (std::vector<int64_t>{3, 3, 2}));
  EXPECT_EQ(parts_by_weight(3, {100, 1, 1}), (std::vector<int64_t>{1, 1, 1}));
  EXPECT_EQ(parts_by_weight(8, {100, 1, 1}), (std::vector<int64_t>{6, 1, 1}));
  EXPECT_EQ(parts_by_weight(5, {1}), (std::vector<int64_t>{5}));
  for (int64_t total = 4; total < 300; total += 7) {
    const auto parts = parts_by_weight(total, {0.3, 7, 1, 2.5});
    EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), int64_t{0}), total);
    EXPECT_GE(*std::min_element(parts.begin(), parts.end()), 1);
  }
}

}  // namespace
}  // namespace outrider::testing
