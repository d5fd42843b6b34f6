// The leader's ends of the links that carry hidden states to draft workers: announced and sent rows, and the
// fallback to messages.
#include "target_worker/hidden_state_links.h"
#include "tests/support/memory_row_link.h"

#include <gtest/gtest.h>

#include "base/bfloat16.h"
#include "target_worker/hidden_state_reader.h"
#include "target_worker/slice_inbox.h"
#include "tests/heads/golden_heads.h"
#include "tests/support/hostile_fields.h"

namespace outrider {
namespace {

using namespace std::chrono_literals;

constexpr Generation kStateWorker{9};
constexpr int32_t kRows = 3, kSlots = 2;
constexpr int64_t kWidth = 64;

// Device memory is host memory; transfers are done when the test says so.
struct MemoryLink final : testing::MemoryRowLink {
  std::vector<uint16_t> memory = std::vector<uint16_t>(kSlots * kRows * kWidth);
  std::vector<std::vector<uint16_t>> sent;

  void transfer(int32_t at, int32_t rows) override { sent.emplace_back(slot(at), slot(at) + rows * kWidth); }
  uint16_t* slot(int32_t at) override { return memory.data() + at * kRows * kWidth; }
};

class HiddenStateLinksTest : public ::testing::Test {
 protected:
  HiddenStateLinksTest() { fresh(); }
  void fresh() {
    worker_.reset();
    hub_ = make_inproc_hub();
    RowLinks links{.new_id = {}, .join = {}, .rows = kRows, .slots = kSlots};
    links.join = [this](const std::string& id) -> Result<std::unique_ptr<RowLink>> {
      if (id != "it") return malformed("no id");
      auto link = std::make_unique<MemoryLink>();
      link_ = link.get();
      return std::unique_ptr<RowLink>(std::move(link));
    };
    inbox_ = std::make_unique<SliceInbox>(hub_->coordinator_end(),
                                          SliceSlotsOptions{.range = {0, 4}, .sequences = 1}, RowLinks(),
                                          std::move(links));
    worker_ = hub_->connect();
    offer(kStateWorker);
  }
  void offer(Generation worker, const std::string& id = "it") {
    ASSERT_TRUE(
        worker_->send(kCoordinatorPeer, LinkOffer{.worker = worker, .id = id, .hidden_states = true}).ok());
    inbox_->look();
  }
  HiddenStateLink* link(Generation worker = kStateWorker) { return inbox_->hidden_states().to(worker); }
  std::optional<Message> heard() {
    while (auto incoming = worker_->receive(Clock::now()))
      if (!std::holds_alternative<Heartbeat>(incoming->message)) return std::move(incoming->message);
    return std::nullopt;
  }

  std::shared_ptr<InprocHub> hub_;
  std::unique_ptr<SliceInbox> inbox_;
  std::unique_ptr<Transport> worker_;
  MemoryLink* link_ = nullptr;
};

TEST_F(HiddenStateLinksTest, TransfersAreAnnouncedAndSentAsFarAsThereAreSlots) {
  EXPECT_TRUE(link()->takes(2));
  EXPECT_FALSE(link()->takes(3));
  for (const uint64_t number : {1, 2}) {
    std::fill_n(link()->room(), kWidth, static_cast<uint16_t>(number));
    EXPECT_EQ(link()->send(1), number);
    const auto told = std::get<HiddenStateTransfer>(*heard());
    EXPECT_EQ(told.number, number);
    EXPECT_EQ(told.rows, 1);
    EXPECT_EQ(link_->sent.back(), std::vector<uint16_t>(kWidth, static_cast<uint16_t>(number)));
  }
  EXPECT_FALSE(link()->takes(1));
  link_->over = 1;
  inbox_->look();
  EXPECT_TRUE(link()->takes(1));
  EXPECT_FALSE(link()->takes(2));
  EXPECT_EQ(link()->room(), link_->slot(0));
  link_->accepting = false;
  EXPECT_FALSE(link()->takes(1));
}

// The worker hears whose rows they are when the plan is over, and has to keep them until then.
TEST_F(HiddenStateLinksTest, APlanHasAsManyTransfersAsThereAreSlotsHoweverSoonTheyEnd) {
  for (int plan = 0; plan < 3; ++plan) {
    for (int i = 0; i < kSlots; ++i) {
      EXPECT_TRUE(link()->takes(1));
      EXPECT_GT(link()->send(1), 0u);
      ++link_->over;
    }
    EXPECT_FALSE(link()->takes(1));
    inbox_->look();
    EXPECT_TRUE(link()->takes(kSlots));
  }
}

// Nothing that was offered stays without an answer, or the worker would wait as long as for a link that is
// slow to come up.
TEST_F(HiddenStateLinksTest, ALeaderWithoutLinksRefusesAtOnce) {
  worker_.reset();
  hub_ = make_inproc_hub();
  inbox_ = std::make_unique<SliceInbox>(hub_->coordinator_end(),
                                        SliceSlotsOptions{.range = {0, 4}, .sequences = 1});
  worker_ = hub_->connect();
  for (const bool hidden_states : {true, false}) {
    ASSERT_TRUE(worker_
                    ->send(kCoordinatorPeer,
                           LinkOffer{.worker = kStateWorker, .id = "it", .hidden_states = hidden_states})
                    .ok());
    inbox_->look();
    const auto answer = heard();
    ASSERT_TRUE(answer) << (hidden_states ? "states" : "q");
    EXPECT_NE(std::get<Failure>(*answer).message.find("no rows from device to device"), std::string::npos);
  }
}

TEST_F(HiddenStateLinksTest, BeforeItIsReadyAndAfterItEndedRowsGoAnotherWay) {
  link_->now = LinkState::kConnecting;
  EXPECT_FALSE(link()->takes(1));
  link_->now = LinkState::kReady;
  EXPECT_TRUE(link()->takes(1));
  link_->abort("gone");
  EXPECT_FALSE(link()->takes(1));
  inbox_->look();
  EXPECT_EQ(link(), nullptr);
  EXPECT_EQ(std::get<Failure>(*heard()).message, "gone");
  EXPECT_EQ(link(Generation{3}), nullptr);
}

TEST_F(HiddenStateLinksTest, AWorkerTakesBackItsOffer) {
  ASSERT_TRUE(worker_->send(kCoordinatorPeer, Failure{"no more"}).ok());
  inbox_->look();
  EXPECT_EQ(link(), nullptr);
  offer(Generation{10});
  EXPECT_NE(link(Generation{10}), nullptr);
  offer(Generation{11});
  EXPECT_NE(link(Generation{11}), nullptr);
  EXPECT_EQ(link(Generation{10}), nullptr) << "a worker has one link";
  while (heard()) {
  }
  offer(Generation{12}, "another");
  EXPECT_EQ(std::get<Failure>(*heard()).message, "the worker offers another one");
  EXPECT_EQ(std::get<Failure>(*heard()).message, "no id");
}

TEST_F(HiddenStateLinksTest, WhoIsGoneIsSentNothing) {
  worker_.reset();
  EXPECT_EQ(link()->send(1), 0u);
  EXPECT_TRUE(link_->sent.empty());
  EXPECT_FALSE(link()->takes(1));
}

TEST_F(HiddenStateLinksTest, NoFieldHarms) {
  const auto tell = [&](const Message& lie, const std::string& what) {
    SCOPED_TRACE(what);
    fresh();
    ASSERT_TRUE(worker_->send(kCoordinatorPeer, lie).ok());
    inbox_->look();
    inbox_->look();
    if (link()) (void)link()->takes(1);
  };
  EXPECT_GT(testing::for_each_lie(LinkOffer{.worker = kStateWorker, .id = "it", .hidden_states = true}, tell),
            5);
  EXPECT_GT(testing::for_each_lie(Failure{"no"}, tell), 2);
  EXPECT_GT(testing::for_each_lie(HiddenStateTransfer{.number = 1, .rows = 1}, tell), 10);
}

// ---- what the leader tells ------------------------------------------------------------------------------

// The rows of messages and those of transfers are the same numbers.
class ToldStates : public HiddenStateLinksTest {
 protected:
  ToldStates() {
    EXPECT_EQ(head_->hidden_size(), kWidth);
    std::vector<TokenId> ids;
    for (int32_t i = 0; i < 20; ++i) ids.emplace_back(i * 37 % 280);
    sequence_ = model_->kv().create();
    const BatchSlice slice{sequence_, ids, 1};
    EXPECT_TRUE(model_->forward({&slice, 1}).ok());
  }
  std::vector<HiddenStateRows> tell(int32_t first, int32_t count, HiddenStateLink* link) {
    std::vector<HiddenStateRows> told;
    reader_.tell(sequence_, {.sequence = SequenceId(1), .first = Position(first), .count = count}, link,
                 told);
    return told;
  }

  const std::unique_ptr<Collectives> group_ = make_single_collectives();
  const std::unique_ptr<Head> head_ = testing::load_head_or_die(
      {"eagle3", HeadKind::kEagle3}, {.max_rows = 16, .max_positions = 120, .kv_tokens = 200});
  const std::unique_ptr<Model> model_ = testing::load_or_die(
      testing::golden_model(testing::kHeadsTarget),
      {.max_positions = 120, .kv_tokens = 400, .aux_layers = head_->config().aux_layers}, *group_);
  HiddenStateReader reader_{*model_, head_->projection(),
                            static_cast<int64_t>(head_->config().aux_layers.size())};
  KvHandle sequence_;
};

TEST_F(ToldStates, AreTheSameByLinkAndByMessage) {
  const auto expected = tell(2, 5, nullptr);
  ASSERT_EQ(expected.size(), 1u);
  ASSERT_EQ(expected[0].values.size(), 5u * kWidth);
  const auto told = tell(2, 5, link());
  ASSERT_EQ(told.size(), 2u);
  std::vector<uint16_t> sent;
  for (size_t i = 0; i < told.size(); ++i) {
    EXPECT_EQ(told[i].first, Position(i == 0 ? 2 : 5));
    EXPECT_EQ(told[i].transfer, i + 1);
    EXPECT_EQ(told[i].count, i == 0 ? 3 : 2);
    EXPECT_TRUE(told[i].values.empty());
    sent.insert(sent.end(), link_->sent[i].begin(), link_->sent[i].end());
  }
  EXPECT_EQ(sent, expected[0].values);
  // No slot is free.
  const auto again = tell(2, 5, link());
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].values, expected[0].values);
}

TEST_F(ToldStates, EndWhereTheTextDoes) {
  link_->over = 0;
  const auto told = tell(18, 9, link());
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].count, 2);
  EXPECT_TRUE(tell(20, 3, link()).empty());
}

}  // namespace
}  // namespace outrider
