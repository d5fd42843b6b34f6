// A rank's ends of links: the transfers it takes part in, and its handling of failed transfers.
#include "target_worker/slice_links.h"
#include "tests/support/memory_row_link.h"

#include <gtest/gtest.h>

#include "target_worker/slice_inbox.h"
#include "tests/support/hostile_fields.h"

namespace outrider {
namespace {

using namespace std::chrono_literals;

constexpr IndexRange kLinkRange{100, 104};
constexpr Generation kLinkWorker{9};

// Records the transfers that it was asked for. Slot numbers stand for addresses.
struct ScriptedLink final : testing::MemoryRowLink {
  std::vector<std::pair<int32_t, int32_t>> transfers;  // slot, rows
  std::array<uint16_t, 8> memory{};

  void transfer(int32_t at, int32_t rows) override { transfers.emplace_back(at, rows); }
  uint16_t* slot(int32_t at) override { return &memory.at(static_cast<size_t>(at)); }
};

PlanEntry link_entry(uint64_t sequence, size_t drafted = 1) {
  PlanEntry link_entry;
  link_entry.sequence = SequenceId(sequence);
  link_entry.round = Round(5);
  link_entry.draft.assign(drafted, TokenId(100));
  link_entry.q_kind = QKind::kSlices;
  link_entry.worker = kLinkWorker;
  return link_entry;
}

QTransfer transfer(uint64_t sequence, uint64_t number, size_t rows = 1) {
  return {.sequence = SequenceId(sequence),
          .round = Round(5),
          .worker = kLinkWorker,
          .number = number,
          .sums = std::vector<uint64_t>(rows, 30),
          .drafted = std::vector<uint64_t>(rows, 4)};
}

class SliceLinksTest : public ::testing::Test {
 protected:
  SliceLinksTest() { fresh(); }
  void fresh() {
    worker_.reset();
    hub_ = make_inproc_hub();
    inbox_ = std::make_unique<SliceInbox>(
        hub_->coordinator_end(), SliceSlotsOptions{.range = kLinkRange, .rank = 0, .sequences = 2, .rows = 3},
        links());
    worker_ = hub_->connect();
    for (const uint64_t sequence : {1, 2}) inbox_->slots().open(SequenceId(sequence));
    send(LinkOffer{.worker = kLinkWorker, .id = "it"});
    inbox_->look();
  }
  RowLinks links() {
    return {.new_id = {},
            .join = [this](const std::string&) -> Result<std::unique_ptr<RowLink>> {
              auto link = std::make_unique<ScriptedLink>();
              link_ = link.get();
              return std::unique_ptr<RowLink>(std::move(link));
            },
            .rows = 3,
            .slots = 3};
  }
  void send(const Message& message) { ASSERT_TRUE(worker_->send(kCoordinatorPeer, message).ok()); }
  SlicedQ gather(const PlanEntry& link_entry, Clock::duration patience = 60s) {
    std::vector<SlicedQ> sliced(1);
    inbox_->gather(std::span(&link_entry, 1), *group_, Clock::now() + patience, sliced);
    return sliced[0];
  }
  bool worker_was_told() {
    while (const auto incoming = worker_->receive(Clock::now() + 10s))
      if (std::holds_alternative<Failure>(incoming->message)) return true;
    return false;
  }

  ScriptedLink* link_ = nullptr;
  std::unique_ptr<Collectives> group_ = make_single_collectives();
  std::shared_ptr<InprocHub> hub_;
  std::unique_ptr<SliceInbox> inbox_;
  std::unique_ptr<Transport> worker_;
};

TEST_F(SliceLinksTest, RowsAreUsedWhereTheyLand) {
  send(transfer(2, 1, 2));
  inbox_->look();
  link_->over = 1;
  const SlicedQ q = gather(link_entry(2, 2));
  ASSERT_FALSE(q.lost);
  EXPECT_EQ(q.on_device, link_->slot(1));
  EXPECT_EQ(q.rows[1].sum, 30u);
  EXPECT_EQ(q.drafted[1], 4u);
}

// Transfers of a sequence that has ended, of a draft that is not planned, and one that is.
TEST_F(SliceLinksTest, EveryTransferHasItsTurn) {
  send(transfer(7, 1));
  send(transfer(1, 2, 3));
  send(transfer(2, 3));
  inbox_->look();
  EXPECT_EQ(link_->transfers, (std::vector<std::pair<int32_t, int32_t>>{{2, 1}, {0, 3}, {1, 1}}));
  link_->over = 3;
  EXPECT_FALSE(gather(link_entry(2)).lost);
}

TEST_F(SliceLinksTest, ADeadlineEndsTheLink) {
  send(transfer(1, 1));
  const SlicedQ q = gather(link_entry(1), 20ms);
  EXPECT_TRUE(q.lost && q.link_lost);
  EXPECT_EQ(link_->now, LinkState::kBroken);
  EXPECT_TRUE(worker_was_told());
  // A transfer announced before the worker knew of it is not awaited for a minute.
  send(transfer(1, 2));
  inbox_->look();
  EXPECT_TRUE(gather(link_entry(1)).link_lost);
  EXPECT_TRUE(worker_was_told());
}

TEST_F(SliceLinksTest, ABrokenLinkIsNotWaitedFor) {
  send(transfer(1, 1));
  inbox_->look();
  link_->abort("gone");
  EXPECT_TRUE(gather(link_entry(1)).link_lost);
  EXPECT_TRUE(worker_was_told());
}

TEST_F(SliceLinksTest, WhatCannotBeEndsTheLink) {
  QTransfer late = transfer(1, 2), none = transfer(1, 1, 0), many = transfer(1, 1, 4),
            uneven = transfer(1, 1), weightless = transfer(1, 1), heavy = transfer(1, 1);
  uneven.drafted.clear();
  weightless.drafted[0] = 0;
  heavy.drafted[0] = 31;
  uint64_t next = kLinkWorker.value();
  for (QTransfer bad : {late, none, many, uneven, weightless, heavy}) {
    bad.worker = Generation(++next);
    send(LinkOffer{.worker = bad.worker, .id = "it"});
    send(bad);
    inbox_->look();
    EXPECT_TRUE(link_->transfers.empty());
    EXPECT_EQ(link_->now, LinkState::kBroken);
    EXPECT_TRUE(worker_was_told());
  }
}

// No message from a worker can delay a rank beyond the deadline. Valid slices are used.
TEST_F(SliceLinksTest, NoFieldHarms) {
  const auto tell = [&](const Message& lie, const std::string& what) {
    SCOPED_TRACE(what);
    fresh();
    send(lie);
    inbox_->look();
    send(lie);
    (void)gather(link_entry(1, 2), 0s);
    (void)gather(link_entry(2), 0s);
  };
  const QTransfer honest = transfer(1, 1, 2);
  EXPECT_GT(testing::for_each_lie(honest, tell), 40);
  EXPECT_GT(testing::for_each_lie(LinkOffer{.worker = kLinkWorker, .id = "it"}, tell), 5);
  const QSlice slice{.sequence = SequenceId(1),
                     .round = Round(5),
                     .worker = kLinkWorker,
                     .rows = 2,
                     .weights = {1, 2, 3, 4, 5, 6, 7, 8}};
  EXPECT_GT(testing::for_each_lie(slice, tell), 30);
}

// More rows than a slot has, from who has no link: the slots have no place for them.
TEST_F(SliceLinksTest, TransfersWithoutALinkAreBoundedToo) {
  QTransfer many = transfer(1, 1, 4000);
  many.worker = Generation(77);
  send(many);
  inbox_->look();
  EXPECT_TRUE(worker_was_told());
  EXPECT_TRUE(gather(link_entry(1), 0s).lost);
}

TEST_F(SliceLinksTest, AnotherWorkersLinkIsNotEndedByALie) {
  const auto stranger = hub_->connect();
  ASSERT_TRUE(stranger->send(kCoordinatorPeer, transfer(1, 17)).ok());
  inbox_->look();
  EXPECT_EQ(link_->now, LinkState::kReady);
}

// An endpoint with an endless stream of messages is not read beyond the deadline either.
TEST(SliceInbox, AFloodDoesNotOutlastTheDeadline) {
  class Flood final : public Transport {
   public:
    Status send(PeerId, const Message&) override { return {}; }
    std::optional<Incoming> receive(Clock::time_point) override { return Incoming{PeerId{1}, QSlice{}}; }
    const TransportStats& stats() const override { return stats_; }

   private:
    TransportStats stats_;
  };
  SliceInbox inbox(std::make_unique<Flood>(), {.range = kLinkRange, .rank = 0, .sequences = 1, .rows = 3});
  inbox.slots().open(SequenceId(1));
  inbox.look();
  EXPECT_FALSE(inbox.collect(std::vector<PlanEntry>{link_entry(1)}, Clock::now() + 20ms));
}

// One rank received the rows over the link, another over its endpoint. Their results cannot be combined, so
// the draft is dropped.
TEST(SliceSlots, RanksWithRowsOfDifferentWaysGiveTheDraftUp) {
  const std::vector<PlanEntry> entries{link_entry(1)};
  SliceSlots first({.range = kLinkRange, .rank = 0, .sequences = 1, .rows = 3});
  SliceSlots second({.range = {104, 108}, .rank = 1, .sequences = 1, .rows = 3});
  for (SliceSlots* slots : {&first, &second}) slots->open(SequenceId(1));
  const std::array<uint16_t, 4> memory{};
  first.arrived(first.announce(transfer(1, 1)), transfer(1, 1), memory.data());
  second.put({.sequence = SequenceId(1),
              .round = Round(5),
              .worker = kLinkWorker,
              .rows = 1,
              .weights = {1, 2, 3, 4}});
  const auto sums = first.tally(entries), others = second.tally(entries);
  for (size_t i = 0; i < sums.size(); ++i) sums[i] += others[i];
  std::vector<SlicedQ> sliced(1);
  first.settle(entries, 2, sliced);
  EXPECT_TRUE(sliced[0].lost && sliced[0].link_lost);
}

}  // namespace
}  // namespace outrider
