#include "cluster/membership.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

using namespace std::chrono_literals;
using Kind = MembershipChange::Kind;

constexpr PeerId kA{1}, kB{2}, kC{3};

// Silence of 300 ms is too long.
class MembershipTest : public testing::Test {
 protected:
  Membership members_{{.heartbeat_interval = 100ms, .missed_heartbeats = 3, .max_members = 2}};
  Clock::time_point start_{};
  static MembershipChange change(Kind kind, PeerId peer, uint64_t generation) {
    return {kind, peer, Generation(generation)};
  }
};

TEST_F(MembershipTest, OnlyAHelloLetsIn) {
  EXPECT_FALSE(members_.heard(kA, start_));
  EXPECT_FALSE(members_.is_alive(kA));
  EXPECT_FALSE(members_.next_deadline());
  EXPECT_EQ(members_.hello(kA, Generation(7), start_), change(Kind::kJoined, kA, 7));
  EXPECT_TRUE(members_.is_alive(kA));
  EXPECT_EQ(members_.next_deadline(), start_ + 300ms);
  EXPECT_FALSE(members_.hello(kA, Generation(7), start_ + 1ms));  // said it twice
}

TEST_F(MembershipTest, AnyMessageIsASignOfLife) {
  members_.hello(kA, Generation(7), start_);
  for (auto now = start_; now < start_ + 2s; now += 250ms) {
    EXPECT_TRUE(members_.expire(now).empty());
    EXPECT_FALSE(members_.heard(kA, now));
    EXPECT_EQ(members_.next_deadline(), now + 300ms);
  }
}

TEST_F(MembershipTest, SilenceIsReportedOnce) {
  members_.hello(kA, Generation(7), start_);
  members_.hello(kB, Generation(8), start_ + 50ms);
  EXPECT_TRUE(members_.expire(start_ + 299ms).empty());
  EXPECT_EQ(members_.expire(start_ + 300ms), (std::vector{change(Kind::kLost, kA, 7)}));
  EXPECT_FALSE(members_.is_alive(kA));
  EXPECT_EQ(members_.next_deadline(), start_ + 350ms);
  EXPECT_EQ(members_.expire(start_ + 10s), (std::vector{change(Kind::kLost, kB, 8)}));
  EXPECT_TRUE(members_.expire(start_ + 20s).empty());
  EXPECT_FALSE(members_.next_deadline());
}

TEST_F(MembershipTest, TheMostSilentIsLostFirst) {
  members_.hello(kA, Generation(7), start_ + 2ms);
  members_.hello(kB, Generation(8), start_ + 1ms);
  EXPECT_EQ(members_.expire(start_ + 10s),
            (std::vector{change(Kind::kLost, kB, 8), change(Kind::kLost, kA, 7)}));
}

TEST_F(MembershipTest, TheLostComeBack) {
  members_.hello(kA, Generation(7), start_);
  ASSERT_EQ(members_.expire(start_ + 300ms).size(), 1u);
  EXPECT_EQ(members_.heard(kA, start_ + 400ms), change(Kind::kRejoined, kA, 7));  // it only hung
  EXPECT_EQ(members_.next_deadline(), start_ + 700ms);
  ASSERT_EQ(members_.expire(start_ + 700ms).size(), 1u);
  EXPECT_EQ(members_.hello(kA, Generation(9), start_ + 800ms),
            change(Kind::kRejoined, kA, 9));  // another life
  EXPECT_TRUE(members_.is_alive(kA));
}

TEST_F(MembershipTest, AnotherLifeIsNoticedWithoutSilence) {
  members_.hello(kA, Generation(7), start_);
  EXPECT_EQ(members_.hello(kA, Generation(8), start_ + 1ms), change(Kind::kRejoined, kA, 8));
  EXPECT_EQ(members_.expire(start_ + 1s), (std::vector{change(Kind::kLost, kA, 8)}));
}

TEST_F(MembershipTest, ClocksThatSeemToRunBackwardsShortenNothing) {
  members_.hello(kA, Generation(7), start_ + 100ms);
  members_.heard(kA, start_);
  EXPECT_TRUE(members_.expire(start_ + 399ms).empty());
  EXPECT_EQ(members_.expire(start_ + 400ms).size(), 1u);
}

TEST_F(MembershipTest, PlacesAreBounded) {
  members_.hello(kA, Generation(1), start_);
  members_.hello(kB, Generation(2), start_ + 200ms);
  EXPECT_FALSE(members_.hello(kC, Generation(3), start_ + 200ms));  // both alive: no place
  EXPECT_FALSE(members_.is_alive(kC));
  ASSERT_EQ(members_.expire(start_ + 300ms).size(), 1u);
  EXPECT_EQ(members_.hello(kC, Generation(3), start_ + 300ms), change(Kind::kJoined, kC, 3));
  EXPECT_TRUE(members_.is_alive(kC));
  EXPECT_FALSE(members_.heard(kA, start_ + 300ms));  // gave up its place
}

TEST_F(MembershipTest, Forgotten) {
  members_.hello(kA, Generation(1), start_);
  members_.forget(kA);
  EXPECT_TRUE(members_.expire(start_ + 10s).empty());
  EXPECT_EQ(members_.hello(kA, Generation(1), start_ + 10s), change(Kind::kJoined, kA, 1));
}

}  // namespace
}  // namespace outrider
