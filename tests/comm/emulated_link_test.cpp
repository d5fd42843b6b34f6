// The emulated network delays, loses and repeats messages, and leaves some kinds untouched. Times are only
// bounded from below, so a busy machine cannot fail a test.
#include "comm/emulated_link.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace outrider {
namespace {

using namespace std::chrono_literals;

TEST(LinkEmulationText, ReadsEveryKeyInItsUnit) {
  const auto link = parse_link_emulation(
      "delay=1.5ms,rate=2mbit,loss=0.3,duplicate=10%,corrupt=1,reorder=0.05,links=all,seed=9");
  ASSERT_TRUE(link.ok()) << link.status().message();
  EXPECT_EQ(link->delay, 1500us);
  EXPECT_EQ(link->bytes_per_second, 250'000);
  EXPECT_EQ(link->loss, 0.3);
  EXPECT_DOUBLE_EQ(link->duplicate, 0.1);
  EXPECT_EQ(link->corrupt, 1);
  EXPECT_EQ(link->reorder, 0.05);
  EXPECT_TRUE(link->drafters && link->target);
  EXPECT_EQ(link->seed, 9u);
  EXPECT_EQ(parse_link_emulation("rate=1gbit")->bytes_per_second, 125e6);
  const auto parted = parse_link_emulation("partition=0s..1500ms");
  EXPECT_EQ(parted->partition_from, 0s);
  EXPECT_EQ(parted->partition_to, 1500ms);
  EXPECT_FALSE(parse_link_emulation("links=target")->drafters);
  EXPECT_FALSE(parse_link_emulation("delay=1s")->target);
}

TEST(LinkEmulationText, AnErrorNamesTheKeyAndAnExample) {
  const std::pair<const char*, const char*> wrong[] = {{"delay=1", "delay=1ms"},
                                                       {"delay=-1ms", "delay=1ms"},
                                                       {"rate=1000", "rate=1gbit"},
                                                       {"rate=0mbit", "rate"},
                                                       {"loss=1.2", "loss=0.1"},
                                                       {"loss=nan", "loss=0.1"},
                                                       {"links=some", "target"},
                                                       {"delay", "KEY=VALUE"},
                                                       {"latency=1ms", "choose delay"},
                                                       {"delay=1ms,,", "''"},
                                                       {"delay=1e300s", "delay=1ms"},
                                                       {"loss=", "loss=0.1"},
                                                       {"partition=3s", "5s..35s"},
                                                       {"partition=2s..1s", "5s..35s"},
                                                       {"partition=1..2", "5s..35s"},
                                                       {"delay=1ms,delay=2ms", "delay is there twice"},
                                                       {"links=target,links=target", "links is there twice"},
                                                       {"loss=0.1,links=target", "loss with links=target"},
                                                       {"links=target,partition=1s..2s", "partition with"}};
  for (const auto& [text, says] : wrong) {
    const auto link = parse_link_emulation(text);
    ASSERT_FALSE(link.ok()) << text;
    EXPECT_NE(link.status().message().find(says), std::string::npos) << link.status().message();
  }
}

// A coordinator behind an emulated link, and one worker that has said hello.
class EmulatedLink : public ::testing::Test {
 protected:
  void open(const std::string& text, Role role = Role::kDraft) {
    coordinator_ = make_emulated_link(hub_->coordinator_end(), parse_link_emulation(text).value());
    ASSERT_TRUE(worker_->send(kCoordinatorPeer, Hello{.role = role}).ok());
    const auto hello = coordinator_->receive(Clock::now() + 10s);
    ASSERT_TRUE(hello && std::holds_alternative<Hello>(hello->message));
    peer_ = hello->peer;
  }

  void propose(uint32_t round) {
    ASSERT_TRUE(coordinator_->send(peer_, Propose{.sequence = SequenceId(1), .round = Round(round)}).ok());
  }
  void draft(uint32_t round, size_t tokens = 0) {
    const std::vector<TokenId> ids(tokens, TokenId(1));
    ASSERT_TRUE(
        worker_->send(kCoordinatorPeer, Draft{.sequence = SequenceId(1), .round = Round(round), .ids = ids})
            .ok());
  }

  // Receives `count` drafts at the coordinator and returns their rounds.
  std::vector<uint32_t> arriving_drafts(size_t count) {
    std::vector<uint32_t> rounds;
    while (rounds.size() < count) {
      const auto incoming = coordinator_->receive(Clock::now() + 10s);
      if (!incoming) break;
      rounds.push_back(std::get<Draft>(incoming->message).round.value());
    }
    return rounds;
  }
  // Rounds of all drafts that arrive, on a link without delay: the worker's last word, which no fault
  // touches, comes after them.
  std::vector<uint32_t> all_arriving_drafts() {
    EXPECT_TRUE(worker_->send(kCoordinatorPeer, Failure{"end"}).ok());
    std::vector<uint32_t> rounds;
    while (const auto incoming = coordinator_->receive(Clock::now() + 10s)) {
      if (std::holds_alternative<Failure>(incoming->message)) return rounds;
      rounds.push_back(std::get<Draft>(incoming->message).round.value());
    }
    ADD_FAILURE() << "no last word";
    return rounds;
  }
  // Receives `count` proposals at the worker and returns their rounds. The coordinator's thread moves both
  // directions.
  std::vector<uint32_t> arriving_proposals(size_t count) {
    std::vector<uint32_t> rounds;
    for (const auto end = Clock::now() + 10s; rounds.size() < count && Clock::now() < end;) {
      EXPECT_FALSE(coordinator_->receive(Clock::now() + 1ms));
      while (const auto incoming = worker_->receive(Clock::now()))
        rounds.push_back(std::get<Propose>(incoming->message).round.value());
    }
    return rounds;
  }

  std::shared_ptr<InprocHub> hub_ = make_inproc_hub();
  std::unique_ptr<Transport> worker_ = hub_->connect(), coordinator_;
  PeerId peer_{};
};

constexpr int kMany = 40;

TEST_F(EmulatedLink, DelaysEachDirectionAndKeepsTheOrder) {
  open("delay=30ms");
  auto start = Clock::now();
  for (uint32_t round = 0; round < 5; ++round) draft(round);
  const auto first = coordinator_->receive(Clock::now() + 10s);
  ASSERT_TRUE(first);
  EXPECT_GE(Clock::now() - start, 30ms);
  EXPECT_EQ(arriving_drafts(4), (std::vector<uint32_t>{1, 2, 3, 4}));

  start = Clock::now();
  propose(7);
  propose(8);
  EXPECT_EQ(arriving_proposals(2), (std::vector<uint32_t>{7, 8}));
  EXPECT_GE(Clock::now() - start, 30ms);
}

TEST_F(EmulatedLink, MessagesQueueForTheRate) {
  open("delay=10ms,rate=8mbit");  // a byte takes a microsecond
  const auto start = Clock::now();
  for (uint32_t round = 0; round < 10; ++round) draft(round, 1000);  // at least 4000 bytes each
  EXPECT_EQ(arriving_drafts(10).size(), 10u);
  EXPECT_GE(Clock::now() - start, 10ms + 40ms);
}

// A wait would end with the message.
TEST_F(EmulatedLink, AWakerEndsAWaitForAMessageUnderWay) {
  open("delay=60s");
  ASSERT_TRUE(worker_->send(kCoordinatorPeer, Heartbeat{}).ok());
  const auto wake = coordinator_->waker();
  for (int i = 0; i < 10; ++i) {
    const std::jthread other(wake);
    EXPECT_FALSE(coordinator_->receive(Clock::now() + 1h));
  }
}

TEST_F(EmulatedLink, LosesAShareOfTheRounds) {
  open("loss=0.3,seed=4");
  for (uint32_t round = 0; round < kMany; ++round) draft(round);
  const auto arrived = all_arriving_drafts();
  EXPECT_GT(arrived.size(), kMany / 2u);
  EXPECT_LT(arrived.size(), kMany - 4u);
  EXPECT_TRUE(std::is_sorted(arrived.begin(), arrived.end()));
}

TEST_F(EmulatedLink, JoiningLeavingAndClosingAreNeverLost) {
  open("loss=1,delay=1ms");
  ASSERT_TRUE(coordinator_->send(peer_, Welcome{.accepted = true}).ok());
  propose(1);
  ASSERT_TRUE(coordinator_->send(peer_, Close{SequenceId(1)}).ok());
  draft(1);
  EXPECT_FALSE(coordinator_->receive(Clock::now() + 100ms));
  ASSERT_TRUE(coordinator_->send(peer_, Shutdown{}).ok());
  std::vector<size_t> kinds;
  while (const auto incoming = worker_->receive(Clock::now())) kinds.push_back(incoming->message.index());
  EXPECT_EQ(kinds, (std::vector<size_t>{Message(Welcome{}).index(), Message(Close{}).index(),
                                        Message(Shutdown{}).index()}));
  ASSERT_TRUE(worker_->send(kCoordinatorPeer, Failure{"end"}).ok());
  EXPECT_TRUE(coordinator_->receive(Clock::now() + 10s));
}

TEST_F(EmulatedLink, EveryMessageTwice) {
  open("duplicate=1");
  draft(1);
  draft(2);
  EXPECT_EQ(all_arriving_drafts(), (std::vector<uint32_t>{1, 1, 2, 2}));
  propose(3);
  EXPECT_EQ(arriving_proposals(2), (std::vector<uint32_t>{3, 3}));
}

TEST_F(EmulatedLink, APartitionHoldsEverythingBackUntilItEnds) {
  const auto start = Clock::now();
  open("partition=20ms..1s");
  ASSERT_TRUE(coordinator_->send(peer_, Welcome{.accepted = true}).ok());
  ASSERT_TRUE(worker_->receive(Clock::now() + 10s));
  std::this_thread::sleep_for(30ms);
  draft(1);
  ASSERT_TRUE(worker_->send(kCoordinatorPeer, Hello{.role = Role::kDraft}).ok());
  propose(2);
  EXPECT_FALSE(Clock::now() - start < 1s && worker_->receive(Clock::now()));
  const auto first = coordinator_->receive(Clock::now() + 10s);
  EXPECT_GE(Clock::now() - start, 1s);
  ASSERT_TRUE(first && std::holds_alternative<Draft>(first->message));
  const auto second = coordinator_->receive(Clock::now() + 10s);
  EXPECT_TRUE(second && std::holds_alternative<Hello>(second->message));
  EXPECT_EQ(arriving_proposals(1), (std::vector<uint32_t>{2}));
  draft(3);  // healed
  EXPECT_EQ(all_arriving_drafts(), (std::vector<uint32_t>{3}));
}

TEST_F(EmulatedLink, OvertakingLosesNothing) {
  open("reorder=0.5,seed=2");
  std::vector<uint32_t> sent;
  for (uint32_t round = 0; round < kMany; ++round) {
    sent.push_back(round);
    draft(round);
  }
  auto arrived = arriving_drafts(kMany);
  EXPECT_FALSE(std::is_sorted(arrived.begin(), arrived.end()));
  std::sort(arrived.begin(), arrived.end());
  EXPECT_EQ(arrived, sent);
}

TEST_F(EmulatedLink, ACorruptFrameIsDroppedAndCounted) {
  open("corrupt=1");
  for (uint32_t round = 0; round < kMany; ++round) draft(round);
  EXPECT_EQ(all_arriving_drafts().size(), 0u);
  EXPECT_EQ(coordinator_->stats().malformed_frames, static_cast<uint64_t>(kMany));
}

TEST_F(EmulatedLink, TheTargetsLinkIsLeftAloneUnlessAskedFor) {
  open("delay=10s,loss=1", Role::kTarget);
  ASSERT_TRUE(worker_->send(kCoordinatorPeer, StepResult{.step = 1}).ok());
  EXPECT_TRUE(coordinator_->receive(Clock::now() + 5s));
}

TEST_F(EmulatedLink, TheTargetsLinkIsOnlyEverSlow) {
  open("delay=20ms,loss=1,links=all", Role::kTarget);
  const auto start = Clock::now();
  ASSERT_TRUE(worker_->send(kCoordinatorPeer, StepResult{.step = 1}).ok());
  EXPECT_TRUE(coordinator_->receive(Clock::now() + 10s));
  EXPECT_GE(Clock::now() - start, 20ms);
}

TEST_F(EmulatedLink, APeerThatLeftIsToldToTheNextSender) {
  open("delay=1ms");
  propose(1);
  worker_.reset();
  EXPECT_FALSE(coordinator_->receive(Clock::now() + 20ms));
  EXPECT_EQ(coordinator_->send(peer_, Close{SequenceId(1)}).code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace outrider
