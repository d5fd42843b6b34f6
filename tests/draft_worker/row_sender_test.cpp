// The worker's end of a link: the rows it sends, announces, keeps and withdraws.
#include "draft_worker/wire/row_sender.h"

#include <gtest/gtest.h>

#include "base/short_weight.h"

namespace outrider {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kVocabulary = 4;
constexpr Round kRound{3};

// Device memory is host memory; transfers are done when the test says so.
struct MemoryLink final : RowLink {
  LinkState now = LinkState::kConnecting;
  std::string why;
  bool accepting = true;
  uint64_t over = 0;
  std::vector<uint16_t> device = std::vector<uint16_t>(2 * 3 * kVocabulary), host = device;
  std::vector<std::vector<uint16_t>> sent;

  LinkState state() override { return now; }
  const std::string& reason() const override { return why; }
  void abort(std::string reason) override { now = LinkState::kBroken, why = std::move(reason); }
  bool accepts() override { return accepting; }
  void transfer(int32_t at, int32_t rows) override {
    sent.emplace_back(slot(at), slot(at) + rows * kVocabulary);
  }
  uint64_t done() const override { return over; }
  uint16_t* slot(int32_t at) override { return device.data() + at * 3 * kVocabulary; }
  std::span<uint16_t> host_slot(int32_t at) override {
    return std::span(host).subspan(static_cast<size_t>(at) * 3 * kVocabulary, 3 * kVocabulary);
  }
  void fill(int32_t at, int32_t rows) override {
    std::copy_n(host_slot(at).begin(), rows * kVocabulary, device.begin() + at * 3 * kVocabulary);
  }
  void keep(int32_t at, int32_t row, const uint16_t* from) override {
    std::copy_n(from, kVocabulary, device.begin() + (at * 3 + row) * kVocabulary);
  }
  void settle() override {}
  void fetch(int32_t at, int32_t row) override {
    std::copy_n(slot(at) + row * kVocabulary, kVocabulary, host_slot(at).begin() + row * kVocabulary);
  }
};

class RowSenderTest : public ::testing::Test {
 protected:
  RowSenderTest() {
    for (int i = 0; i < 2; ++i) endpoints_.push_back(hub_->connect());
    RowLinks links{.new_id = [] { return Result<std::string>("it"); }, .join = {}, .rows = 3, .slots = 2};
    links.join = [this](const std::string&) -> Result<std::unique_ptr<RowLink>> {
      auto link = std::make_unique<MemoryLink>();
      link_ = link.get();
      return std::unique_ptr<RowLink>(std::move(link));
    };
    sender_ = std::make_unique<RowSender>(std::move(links), kVocabulary, Generation{7});
  }
  void connect() {
    Draft first = draft(9, {{1, 1, 1, 1}});
    EXPECT_FALSE(sender_->send(first, endpoints_));
    for (int rank = 0; rank < 2; ++rank) EXPECT_TRUE(std::holds_alternative<LinkOffer>(heard()));
    link_->now = LinkState::kReady;
  }
  // Drafts token 1 everywhere. A row without weights was kept.
  static Draft draft(uint64_t sequence, const std::vector<std::vector<uint32_t>>& rows) {
    Draft draft;
    draft.sequence = SequenceId(sequence);
    draft.round = kRound;
    draft.q_kind = QKind::kSlices;
    for (const auto& weights : rows) {
      draft.ids.emplace_back(1);
      draft.q.push_back(
          {.ids = {}, .weights = weights, .sum = std::accumulate(weights.begin(), weights.end(), 0u)});
    }
    return draft;
  }
  void keep(uint64_t sequence, size_t i, const std::vector<uint16_t>& row) {
    sender_->keep(SequenceId(sequence), kRound, i, {.weights = row.data(), .sum = 50, .drawn = row[1]});
    sender_->settle();
  }
  Message heard() {
    auto incoming = coordinator_->receive(Clock::now() + 10s);
    last_ = incoming->peer;
    return std::move(incoming->message);
  }

  std::shared_ptr<InprocHub> hub_ = make_inproc_hub();
  std::unique_ptr<Transport> coordinator_ = hub_->coordinator_end();
  std::vector<std::unique_ptr<Transport>> endpoints_;
  MemoryLink* link_ = nullptr;
  std::unique_ptr<RowSender> sender_;
  PeerId last_;
};

TEST_F(RowSenderTest, RowsOfTheHostAreAnnouncedToEveryRankAndSent) {
  connect();
  Draft sent = draft(1, {{5, 6, 0, 7}, {8, 9}});  // the second ends with zeros
  ASSERT_TRUE(sender_->send(sent, endpoints_));
  EXPECT_EQ(link_->sent, (std::vector<std::vector<uint16_t>>{{5, 6, 0, 7, 8, 9, 0, 0}}));
  for (int rank = 0; rank < 2; ++rank) {
    const auto transfer = std::get<QTransfer>(heard());
    EXPECT_EQ(transfer.number, 1u);
    EXPECT_EQ(transfer.round, kRound);
    EXPECT_EQ(transfer.sums, (std::vector<uint64_t>{18, 17}));
    EXPECT_EQ(transfer.drafted, (std::vector<uint64_t>{6, 9}));
  }
  EXPECT_EQ(sender_->bytes(), 2 * kVocabulary * 2);
}

TEST_F(RowSenderTest, RowsThatStayedOnTheDeviceAreSentFromThere) {
  connect();
  ASSERT_TRUE(sender_->reserve(SequenceId(1), 2));
  keep(1, 0, {1, 2, 3, 4});
  keep(1, 1, {5, 6, 7, 8});
  Draft sent = draft(1, {{}});  // cut to one
  ASSERT_TRUE(sender_->send(sent, endpoints_));
  EXPECT_EQ(link_->sent, (std::vector<std::vector<uint16_t>>{{1, 2, 3, 4}}));
  const auto transfer = std::get<QTransfer>(heard());
  EXPECT_EQ(transfer.sums, std::vector<uint64_t>{50});
  EXPECT_EQ(transfer.drafted, std::vector<uint64_t>{2});
}

TEST_F(RowSenderTest, RowsOfBothKindsGoTogether) {
  connect();
  ASSERT_TRUE(sender_->reserve(SequenceId(1), 2));
  keep(1, 1, {5, 6, 7, 8});
  Draft sent = draft(1, {{1, 2, 3, 4}, {}});
  ASSERT_TRUE(sender_->send(sent, endpoints_));
  EXPECT_EQ(link_->sent, (std::vector<std::vector<uint16_t>>{{1, 2, 3, 4, 5, 6, 7, 8}}));
}

TEST_F(RowSenderTest, AWordFromAnyRankEndsTheLinkAndTheRowsComeHome) {
  connect();
  ASSERT_TRUE(sender_->reserve(SequenceId(1), 1));
  keep(1, 0, {1, 2, 3, 2048});
  ASSERT_TRUE(coordinator_->send(last_, Failure{"no"}).ok());
  Draft sent = draft(1, {{}});
  EXPECT_FALSE(sender_->send(sent, endpoints_));
  EXPECT_EQ(link_->why, "no");
  EXPECT_EQ(sent.q[0].weights, (std::vector<uint32_t>{1, 2, 3, weight_of_short_bits(2048)}));
  EXPECT_FALSE(sender_->reserve(SequenceId(1), 1));
  EXPECT_TRUE(link_->sent.empty());
}

TEST_F(RowSenderTest, ASlotIsTakenUntilItsTransferIsDone) {
  connect();
  const auto sends = [&](uint64_t sequence) {
    Draft sent = draft(sequence, {{1, 2}});
    return sender_->send(sent, endpoints_);
  };
  EXPECT_TRUE(sends(1));
  ASSERT_TRUE(sender_->reserve(SequenceId(2), 1));
  EXPECT_FALSE(sends(3));
  EXPECT_FALSE(sender_->reserve(SequenceId(3), 1));
  sender_->drop(SequenceId(2));
  EXPECT_TRUE(sends(3));
  EXPECT_FALSE(sends(4));
  link_->over = 1;
  link_->accepting = false;
  EXPECT_FALSE(sends(4));
  link_->accepting = true;
  EXPECT_TRUE(sends(4));
  EXPECT_FALSE(sender_->reserve(SequenceId(5), 4));  // no slot is that long
}

}  // namespace
}  // namespace outrider
