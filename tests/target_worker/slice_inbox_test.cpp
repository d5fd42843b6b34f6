// The slices of q that an inbox keeps: the newest slice of each open sequence, if it fits. Only the plan that
// names a slice can use it.
#include "target_worker/slice_inbox.h"

#include <gtest/gtest.h>

#include <thread>

namespace outrider {
namespace {

using namespace std::chrono_literals;

constexpr IndexRange kRange{100, 104};
constexpr Generation kWorker{9};

QSlice slice(uint64_t sequence, uint32_t round, size_t rows = 1, Generation worker = kWorker) {
  QSlice slice{.sequence = SequenceId(sequence),
               .round = Round(round),
               .worker = worker,
               .rows = static_cast<int32_t>(rows)};
  for (size_t i = 0; i < rows; ++i)
    for (const uint16_t weight : {1, 0, 2, 0}) slice.weights.push_back(weight);
  return slice;
}

PlanEntry entry(uint64_t sequence, uint32_t round, size_t drafted = 1) {
  PlanEntry entry;
  entry.sequence = SequenceId(sequence);
  entry.round = Round(round);
  entry.draft.assign(drafted, TokenId(100));
  entry.q_kind = QKind::kSlices;
  entry.worker = kWorker;
  return entry;
}

std::vector<uint64_t> weights(const SlicedQ& q) { return {q.drafted.begin(), q.drafted.end()}; }

class Inbox : public ::testing::Test {
 protected:
  Inbox() {
    inbox_.slots().open(SequenceId(1));
    inbox_.slots().open(SequenceId(2));
  }
  void send(const QSlice& slice) { ASSERT_TRUE(worker_->send(kCoordinatorPeer, slice).ok()); }
  // In a group of one.
  std::vector<SlicedQ> gather(const std::vector<PlanEntry>& entries, Clock::duration patience = 0ms) {
    std::vector<SlicedQ> sliced(entries.size());
    inbox_.gather(entries, *group_, Clock::now() + patience, sliced);
    return sliced;
  }
  bool finds(const PlanEntry& entry, Clock::duration patience = 0ms) {
    return !gather({entry}, patience)[0].lost;
  }

  std::unique_ptr<Collectives> group_ = make_single_collectives();
  std::shared_ptr<InprocHub> hub_ = make_inproc_hub();
  SliceInbox inbox_{hub_->coordinator_end(), {.range = kRange, .sequences = 2, .rows = 3}};
  std::unique_ptr<Transport> worker_ = hub_->connect();
};

TEST_F(Inbox, WaitsForTheSlicesOfAPlan) {
  const std::vector<PlanEntry> entries{entry(1, 5), entry(2, 6, 2)};
  send(slice(2, 6, 2));
  send(slice(1, 5));
  const auto sliced = gather(entries, 10s);
  ASSERT_FALSE(sliced[0].lost || sliced[1].lost);
  EXPECT_EQ(sliced[1].rows.size(), 2u);
  EXPECT_EQ(sliced[0].rows[0].weights, (std::vector<uint32_t>{1, 0, 2, 0}));
  EXPECT_EQ(sliced[0].rows[0].sum, 3u);
  EXPECT_EQ(weights(sliced[0]), std::vector<uint64_t>{1});
  EXPECT_FALSE(finds(entry(1, 7), 20ms));
}

TEST_F(Inbox, OnlyTheRoundTheWorkerAndTheLengthOfThePlanCount) {
  send(slice(1, 5));
  EXPECT_TRUE(finds(entry(1, 5)));
  EXPECT_FALSE(finds(entry(1, 4)));
  EXPECT_FALSE(finds(entry(1, 5, 2)));
  PlanEntry of_another = entry(1, 5);
  of_another.worker = Generation(8);
  EXPECT_FALSE(finds(of_another));
}

TEST_F(Inbox, NewerRoundsReplaceOlderOnesAndNotTheOtherWayRound) {
  send(slice(1, 5));
  send(slice(1, 6));
  send(slice(1, 4));
  EXPECT_TRUE(finds(entry(1, 6)));
  EXPECT_FALSE(finds(entry(1, 5)));
  EXPECT_TRUE(finds(entry(1, 6)));
}

TEST_F(Inbox, SequencesThatAreNotOpenHaveNoPlace) {
  send(slice(3, 1));
  EXPECT_FALSE(finds(entry(3, 1)));
  inbox_.slots().close(SequenceId(1));
  send(slice(1, 5));
  EXPECT_FALSE(finds(entry(1, 5)));
}

TEST_F(Inbox, RowsThatDoNotFitAreDropped) {
  QSlice wide = slice(1, 5), none = slice(1, 5, 0), many = slice(1, 5, 4), negative = slice(1, 5),
         no_weight = slice(1, 5);
  wide.weights.push_back(1);
  negative.rows = -1;
  no_weight.weights[1] = UINT16_MAX;
  for (const QSlice& bad : {wide, none, many, negative, no_weight}) {
    send(bad);
    EXPECT_FALSE(finds(entry(1, 5)));
  }
}

TEST_F(Inbox, ADraftedTokenWithoutWeightIsALostDraft) {
  PlanEntry of_another_token = entry(1, 5);
  of_another_token.draft = {TokenId(101)};  // of weight 0, and no other rank has one
  send(slice(1, 5));
  EXPECT_FALSE(finds(of_another_token));
}

// Two ranks of [100, 104) and [104, 108): the second has all of the weight of one row, and misses another.
TEST(InboxOfRanks, AgreeOnSumsAndOnWhatIsLost) {
  const auto group = make_thread_collectives(2);
  const auto rank = [&](size_t r) {
    const auto hub = make_inproc_hub();
    const auto begin = static_cast<int64_t>(100 + 4 * r);
    SliceInbox inbox(hub->coordinator_end(), {.range = {begin, begin + 4}, .sequences = 2, .rows = 3});
    const auto worker = hub->connect();
    for (const uint64_t sequence : {1, 2}) inbox.slots().open(SequenceId(sequence));
    QSlice first = slice(1, 5);
    if (r == 0) first.weights = {0, 0, 0, 0};
    EXPECT_TRUE(worker->send(kCoordinatorPeer, first).ok());
    if (r == 0) {
      EXPECT_TRUE(worker->send(kCoordinatorPeer, slice(2, 5)).ok());
    }
    std::vector<SlicedQ> sliced(2);
    PlanEntry token = entry(1, 5);
    token.draft = {TokenId(106)};
    inbox.gather(std::vector{token, entry(2, 5)}, *group[r], Clock::now() + 50ms, sliced);
    EXPECT_FALSE(sliced[0].lost);
    EXPECT_EQ(sliced[0].rows[0].sum, 3u);
    EXPECT_EQ(weights(sliced[0]), std::vector<uint64_t>{2});
    EXPECT_TRUE(sliced[1].lost);
  };
  {
    std::jthread other([&] { rank(1); });
    rank(0);
  }
}

}  // namespace
}  // namespace outrider
