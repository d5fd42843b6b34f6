// The worker's end of the link that brings hidden states: the transfers it takes part in, where it keeps rows
// until they are read, and its handling of rows that do not arrive.
#include "draft_worker/wire/hidden_state_inbox.h"

#include <gtest/gtest.h>

#include "base/bfloat16.h"
#include "draft_worker/head/head_drafting.h"
#include "tests/heads/golden_heads.h"
#include "tests/support/hostile_fields.h"
#include "tests/support/memory_row_link.h"

namespace outrider {
namespace {

using namespace std::chrono_literals;
using Arrival = HiddenStateInbox::Arrival;

constexpr int64_t kWidth = 4;
constexpr int32_t kRows = 3, kSlots = 2;
constexpr SequenceId kInboxSequence(1);

// Device memory is host memory. Row i of transfer n is n + i / 4 everywhere, once the test says that it is
// there.
struct StateMemoryLink final : testing::MemoryRowLink {
  std::vector<std::pair<int32_t, int32_t>> transfers;  // slot, rows
  std::vector<uint16_t> memory = std::vector<uint16_t>(kSlots * kRows * kWidth);

  void arrive() {
    const auto [at, rows] = transfers.at(over++);
    for (int32_t i = 0; i < rows; ++i)
      std::fill_n(slot(at) + i * kWidth, kWidth,
                  to_bf16(static_cast<float>(over) + static_cast<float>(i) / 4).bits);
  }
  void transfer(int32_t at, int32_t rows) override { transfers.emplace_back(at, rows); }
  uint16_t* slot(int32_t at) override { return memory.data() + at * kRows * kWidth; }
};

class HiddenStateInboxTest : public ::testing::Test {
 protected:
  HiddenStateInboxTest() { fresh(); }
  void fresh(std::chrono::milliseconds patience = 60s) {
    inbox_.reset();
    hub_ = make_inproc_hub();
    leader_ = hub_->coordinator_end();
    RowLinks links{
        .new_id = [] { return Result<std::string>("it"); }, .join = {}, .rows = kRows, .slots = kSlots};
    links.join = [this](const std::string&) -> Result<std::unique_ptr<RowLink>> {
      auto link = std::make_unique<StateMemoryLink>();
      link_ = link.get();
      return std::unique_ptr<RowLink>(std::move(link));
    };
    inbox_ = std::make_unique<HiddenStateInbox>(
        hub_->connect(), std::move(links), *compute_,
        HiddenStateInboxOptions{.worker = Generation{7}, .width = kWidth, .patience = patience});
    EXPECT_FALSE(leader_->receive(Clock::now()));
    inbox_->look();
    const auto offer = leader_->receive(Clock::now() + 10s);
    worker_ = offer->peer;
    EXPECT_TRUE(std::get<LinkOffer>(offer->message).hidden_states);
    announced_ = 0;
  }
  void announce(int32_t rows) {
    ASSERT_TRUE(leader_->send(worker_, HiddenStateTransfer{.number = ++announced_, .rows = rows}).ok());
    inbox_->look();
  }
  void arrive() {
    link_->arrive();
    inbox_->look();
  }
  std::vector<float> read(uint64_t transfer, int64_t first, int64_t count) {
    const RowBuffer rows = compute_->rows(count, kWidth);
    inbox_->read(transfer, first, rows.rows(count));
    std::vector<float> out;
    for (int64_t r = 0; r < count; ++r) out.push_back(rows.rows(count).row(r)[kWidth - 1]);
    return out;
  }
  bool leader_was_told() {
    while (const auto incoming = leader_->receive(Clock::now()))
      if (std::holds_alternative<Failure>(incoming->message)) return true;
    return false;
  }
  static HiddenStateRows told(int32_t first, int32_t count, uint64_t transfer) {
    return {.sequence = kInboxSequence,
            .first = Position(first),
            .ids = std::vector<TokenId>(static_cast<size_t>(count)),
            .width = kWidth,
            .values = {},
            .transfer = transfer,
            .count = count};
  }
  static HiddenStateRows brought(int32_t first, int32_t count, float number) {
    HiddenStateRows rows = told(first, count, 0);
    rows.values.assign(static_cast<size_t>(count * kWidth), to_bf16(number).bits);
    return rows;
  }

  const std::shared_ptr<HeadCompute> compute_ = make_host_compute(1, 1 << 20);
  std::shared_ptr<InprocHub> hub_;
  std::unique_ptr<Transport> leader_;
  PeerId worker_;
  StateMemoryLink* link_ = nullptr;
  std::unique_ptr<HiddenStateInbox> inbox_;
  uint64_t announced_ = 0;
};

TEST_F(HiddenStateInboxTest, RowsAreReadWhereTheyLand) {
  announce(3);
  inbox_->claim(1);
  EXPECT_EQ(inbox_->arrival(1, 3), Arrival::kComing);
  arrive();
  EXPECT_EQ(inbox_->arrival(1, 3), Arrival::kHere);
  EXPECT_EQ(inbox_->arrival(1, 4), Arrival::kLost) << "more than there are";
  EXPECT_EQ(read(1, 1, 2), (std::vector<float>{1.25f, 1.5f}));
  inbox_->release(1);
  EXPECT_EQ(inbox_->arrival(1, 3), Arrival::kLost);
  EXPECT_EQ(inbox_->arrived(), 3);
}

// The coordinator's word may come first.
TEST_F(HiddenStateInboxTest, ATransferIsClaimedBeforeItIsAnnounced) {
  inbox_->claim(1);
  EXPECT_EQ(inbox_->arrival(1, 2), Arrival::kComing);
  announce(2);
  arrive();
  EXPECT_EQ(inbox_->arrival(1, 2), Arrival::kHere);
}

// The first transfer is never claimed, so it is evicted first. The oldest transfer is evicted next, and its
// rows remain readable.
TEST_F(HiddenStateInboxTest, EveryTransferHasItsTurnAndTheOldestMakesRoom) {
  for (const int32_t rows : {1, 2, 3, 1}) announce(rows);
  EXPECT_EQ(link_->transfers, (std::vector<std::pair<int32_t, int32_t>>{{0, 1}, {1, 2}}));
  for (const uint64_t claimed : {2, 3, 4}) inbox_->claim(claimed);
  arrive();
  EXPECT_EQ(link_->transfers.back(), (std::pair<int32_t, int32_t>{0, 3}));
  EXPECT_EQ(inbox_->arrival(1, 1), Arrival::kLost);
  arrive();
  EXPECT_EQ(link_->transfers.back(), (std::pair<int32_t, int32_t>{1, 1}));
  EXPECT_EQ(inbox_->brought_home(), 2);
  arrive();
  arrive();
  EXPECT_EQ(read(2, 0, 2), (std::vector<float>{2, 2.25f}));
  EXPECT_EQ(read(3, 0, 3), (std::vector<float>{3, 3.25f, 3.5f}));
  EXPECT_EQ(read(4, 0, 1), std::vector<float>{4});
}

// Their HiddenStateRows come when the plan is over, behind all of its transfers.
TEST_F(HiddenStateInboxTest, WhatNobodyHasAskedForYetIsForgottenLast) {
  announce(1);
  inbox_->claim(1);
  arrive();
  announce(2);
  arrive();
  announce(3);
  EXPECT_EQ(inbox_->brought_home(), 1);
  arrive();
  for (const uint64_t number : {2, 3}) {
    inbox_->claim(number);
    EXPECT_EQ(inbox_->arrival(number, static_cast<int64_t>(number)), Arrival::kHere);
  }
  EXPECT_EQ(read(1, 0, 1), std::vector<float>{1});
  EXPECT_EQ(read(2, 0, 2), (std::vector<float>{2, 2.25f}));
}

TEST_F(HiddenStateInboxTest, ABrokenLinkLosesWhatIsNotHere) {
  announce(2);
  announce(1);
  inbox_->claim(1);
  inbox_->claim(2);
  arrive();
  link_->abort("gone");
  inbox_->look();
  EXPECT_TRUE(leader_was_told());
  EXPECT_EQ(inbox_->arrival(1, 2), Arrival::kHere);
  EXPECT_EQ(read(1, 0, 1), std::vector<float>{1});
  EXPECT_EQ(inbox_->arrival(2, 1), Arrival::kLost);
  inbox_->claim(3);
  EXPECT_EQ(inbox_->arrival(3, 1), Arrival::kLost);
}

TEST_F(HiddenStateInboxTest, PatienceEndsTheLink) {
  for (const bool announced : {true, false}) {
    fresh(20ms);
    if (announced) announce(2);
    std::this_thread::sleep_for(30ms);
    inbox_->look();
    EXPECT_EQ(link_->now, LinkState::kReady) << "nobody waits";
    inbox_->claim(1);
    std::this_thread::sleep_for(30ms);
    inbox_->look();
    EXPECT_EQ(link_->now, LinkState::kBroken);
    EXPECT_EQ(inbox_->arrival(1, 2), Arrival::kLost);
    EXPECT_TRUE(leader_was_told());
  }
}

TEST_F(HiddenStateInboxTest, WhatCannotBeEndsTheLink) {
  for (const HiddenStateTransfer& bad : {HiddenStateTransfer{.number = 2, .rows = 1},
                                         {.number = 0, .rows = 1},
                                         {.number = 1, .rows = 0},
                                         {.number = 1, .rows = kRows + 1},
                                         {.number = 1, .rows = -1}}) {
    fresh();
    ASSERT_TRUE(leader_->send(worker_, bad).ok());
    inbox_->look();
    EXPECT_EQ(link_->now, LinkState::kBroken);
    EXPECT_TRUE(link_->transfers.empty());
    EXPECT_TRUE(leader_was_told());
  }
}

TEST_F(HiddenStateInboxTest, NoFieldHarms) {
  const auto tell = [&](const Message& lie, const std::string& what) {
    SCOPED_TRACE(what);
    fresh();
    ASSERT_TRUE(leader_->send(worker_, lie).ok());
    inbox_->claim(1);
    inbox_->look();
    inbox_->look();
  };
  EXPECT_GT(testing::for_each_lie(HiddenStateTransfer{.number = 1, .rows = 2}, tell), 15);
}

// ---- what is held of a sequence ---------------------------------------------------------------------------

class HeldHiddenStatesTest : public HiddenStateInboxTest {
 protected:
  std::vector<float> read(const HeldHiddenStates& held, int64_t first, int64_t count) {
    const RowBuffer rows = compute_->rows(count, kWidth);
    held.read(first, rows.rows(count));
    std::vector<float> out;
    for (int64_t r = 0; r < count; ++r) out.push_back(rows.rows(count).row(r)[0]);
    return out;
  }
};

TEST_F(HeldHiddenStatesTest, RowsOfMessagesAndOfTransfersAreOneBehindTheOther) {
  HeldHiddenStates held(*compute_, inbox_.get());
  held.add(brought(0, 2, 9));
  held.add(told(1, 3, 1));  // its first row is known already
  EXPECT_EQ(held.end(), 4);
  EXPECT_EQ(held.ready(), 2);
  held.add(brought(4, 1, 8));
  EXPECT_EQ(held.ready(), 2);
  announce(3);
  arrive();
  EXPECT_EQ(held.ready(), 5);
  EXPECT_EQ(read(held, 0, 5), (std::vector<float>{9, 9, 1.25f, 1.5f, 8}));
  EXPECT_EQ(read(held, 3, 2), (std::vector<float>{1.5f, 8}));
  held.forget_before(3);
  EXPECT_EQ(held.first(), 3);
  EXPECT_EQ(read(held, 3, 1), std::vector<float>{1.5f});
  held.forget_before(4);
  EXPECT_EQ(inbox_->arrival(1, 1), Arrival::kLost) << "given back";
}

TEST_F(HeldHiddenStatesTest, OfAMessageOnlyWhatIsNeededStays) {
  HeldHiddenStates held(*compute_, nullptr);
  HiddenStateRows rows = brought(0, 8, 5);
  for (size_t i = 0; i < rows.values.size(); ++i)
    rows.values[i] = to_bf16(static_cast<float>(i / kWidth)).bits;
  held.add(rows);
  for (int64_t row = 0; row < 8; ++row) {
    held.forget_before(row);
    EXPECT_EQ(read(held, row, 8 - row).front(), static_cast<float>(row));
    EXPECT_EQ(read(held, 7, 1), std::vector<float>{7});
  }
}

TEST_F(HeldHiddenStatesTest, WhatIsLostIsForgottenWithAllBehindIt) {
  HeldHiddenStates held(*compute_, inbox_.get());
  announce(2);
  announce(2);
  held.add(told(0, 2, 1));
  held.add(told(2, 2, 2));
  held.add(brought(4, 3, 7));
  arrive();
  EXPECT_FALSE(held.forget_lost());
  link_->abort("gone");
  inbox_->look();
  EXPECT_TRUE(held.forget_lost());
  EXPECT_EQ(held.end(), 2);
  EXPECT_EQ(held.ready(), 2);
  EXPECT_FALSE(held.forget_lost());
  held.add(brought(2, 1, 6));
  EXPECT_EQ(read(held, 1, 2), (std::vector<float>{1.25f, 6}));
}

// The leader polls the link while it works. Both ends must poll until the link is ready, because a sleeping
// worker is offered no link.
TEST(HeadWithALink, OffersItWithItsFirstSequenceAndSaysWhatItLost) {
  const auto head = testing::load_head_or_die({"eagle3", HeadKind::kEagle3},
                                              {.max_rows = 16, .max_positions = 100, .kv_tokens = 200});
  const auto hub = make_inproc_hub();
  const auto leader = hub->coordinator_end();
  StateMemoryLink* link = nullptr;
  RowLinks links{
      .new_id = [] { return Result<std::string>("it"); }, .join = {}, .rows = kRows, .slots = kSlots};
  links.join = [&](const std::string&) -> Result<std::unique_ptr<RowLink>> {
    auto made = std::make_unique<StateMemoryLink>();
    link = made.get();
    return std::unique_ptr<RowLink>(std::move(made));
  };
  HiddenStateInbox inbox(hub->connect(), links, head->compute(),
                         {.worker = Generation{7}, .width = head->hidden_size()});
  HeadDrafting drafter(*head, {.inbox = &inbox});
  std::vector<DraftAnswer> answers;
  EXPECT_FALSE(drafter.work(answers));
  EXPECT_FALSE(leader->receive(Clock::now()));
  ASSERT_TRUE(
      drafter.open({.sequence = kInboxSequence, .ids = std::vector<TokenId>(5), .prompt_length = 5}).ok());
  EXPECT_FALSE(drafter.work(answers));
  EXPECT_TRUE(std::holds_alternative<LinkOffer>(leader->receive(Clock::now())->message));

  HiddenStateRows rows{.sequence = kInboxSequence, .first = {}, .ids = std::vector<TokenId>(3), .values = {}};
  rows.width = static_cast<int32_t>(head->hidden_size());
  rows.transfer = 1;
  rows.count = 3;
  ASSERT_TRUE(drafter.take(rows).ok());
  EXPECT_EQ(drafter.held(kInboxSequence).hidden_state_rows, 3);
  EXPECT_TRUE(drafter.work(answers)) << "they are on their way";
  EXPECT_TRUE(answers.empty());
  link->abort("gone");
  EXPECT_TRUE(drafter.work(answers));
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_FALSE(answers[0].status.ok());
  EXPECT_EQ(answers[0].draft.sequence, kInboxSequence);
  EXPECT_EQ(drafter.held(kInboxSequence).hidden_state_rows, 0);
}

// Two sequences that name one transfer, as only a job that lies does.
TEST_F(HeldHiddenStatesTest, ATransferIsGivenBackOnce) {
  HeldHiddenStates one(*compute_, inbox_.get()), two(*compute_, inbox_.get());
  announce(2);
  one.add(told(0, 2, 1));
  two.add(told(0, 2, 1));
  arrive();
  one.forget_before(2);
  EXPECT_EQ(two.ready(), 0);
  EXPECT_TRUE(two.forget_lost());
  EXPECT_EQ(two.end(), 0);
}

}  // namespace
}  // namespace outrider
