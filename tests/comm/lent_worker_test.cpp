// A worker that runs on the coordinator's thread (InprocHub::lend): a message wakes no other thread.
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <stdexcept>
#include <thread>

#include "comm/transport.h"

namespace outrider {
namespace {

using namespace std::chrono_literals;

// Answers every Heartbeat with one of the next generation; leaves at a Shutdown.
class LentWorker : public testing::Test {
 protected:
  ~LentWorker() override {
    if (thread_.joinable()) thread_.join();
  }

  void lend() {
    thread_ = std::thread([this, worker = std::shared_ptr<Transport>(hub_->connect())] {
      ASSERT_TRUE(worker->send(kCoordinatorPeer, Heartbeat{Generation(0)}).ok());
      try {
        hub_->lend(*worker, [&] { return turn(*worker); });
      } catch (const std::runtime_error& error) {
        failure_ = error.what();
      }
      back_ = true;
    });
    const auto hello = coordinator_->receive(Clock::now() + 10s);
    ASSERT_TRUE(hello);
    peer_ = hello->peer;
    ASSERT_EQ(ask(0), 1u);  // its thread may be late: from here on it is lent
  }

  bool turn(Transport& worker) {
    ++turns_;
    turn_thread_ = std::this_thread::get_id();
    for (const auto end = Clock::now() + turn_takes_; Clock::now() < end;) {
    }
    while (auto incoming = worker.receive(Clock::now())) {
      if (std::holds_alternative<Shutdown>(incoming->message)) return false;
      if (std::holds_alternative<Close>(incoming->message)) throw std::runtime_error("broken");
      const auto* beat = std::get_if<Heartbeat>(&incoming->message);
      if (beat && !worker.send(kCoordinatorPeer, Heartbeat{Generation(beat->generation.value() + 1)}).ok())
        return false;
    }
    return true;
  }

  // Another one, which does nothing with its turns.
  std::thread lend_one_that_counts(std::atomic<int>& turns) {
    std::thread other([this, &turns, worker = std::shared_ptr<Transport>(hub_->connect())] {
      ASSERT_TRUE(worker->send(kCoordinatorPeer, Heartbeat{Generation(0)}).ok());
      hub_->lend(*worker, [&turns] {
        ++turns;
        return true;
      });
    });
    EXPECT_TRUE(coordinator_->receive(Clock::now() + 10s));
    return other;
  }

  std::optional<uint64_t> ask(uint64_t question) {
    if (!coordinator_->send(peer_, Heartbeat{Generation(question)}).ok()) return std::nullopt;
    const auto answer = coordinator_->receive(Clock::now() + 10s);
    return answer ? std::optional(std::get<Heartbeat>(answer->message).generation.value()) : std::nullopt;
  }

  std::shared_ptr<InprocHub> hub_ = make_inproc_hub();
  std::unique_ptr<Transport> coordinator_ = hub_->coordinator_end();
  PeerId peer_{};
  std::thread thread_;
  std::thread::id turn_thread_;
  std::chrono::milliseconds turn_takes_{0};
  std::atomic<int> turns_{0};
  std::atomic<bool> back_{false};
  std::string failure_;
};

TEST_F(LentWorker, AnswersOnTheCoordinatorsThread) {
  lend();
  for (uint64_t i = 1; i < 100; ++i) ASSERT_EQ(ask(i), i + 1);
  EXPECT_EQ(turn_thread_, std::this_thread::get_id());
  EXPECT_FALSE(back_);
  coordinator_.reset();
}

TEST_F(LentWorker, GetsATurnAlsoWhileNothingArrives) {
  lend();
  const int before = turns_;
  EXPECT_FALSE(coordinator_->receive(Clock::now() + 5ms));
  EXPECT_GT(turns_, before) << "it could not show that it is alive";
  coordinator_.reset();
}

TEST_F(LentWorker, ComesBackWhenItLeaves) {
  lend();
  ASSERT_EQ(ask(1), 2u);
  ASSERT_TRUE(coordinator_->send(peer_, Shutdown{}).ok());
  EXPECT_FALSE(coordinator_->receive(Clock::now()));
  thread_.join();
  EXPECT_TRUE(back_);
}

TEST_F(LentWorker, ItsExceptionIsItsOwn) {
  lend();
  ASSERT_TRUE(coordinator_->send(peer_, Close{}).ok());
  EXPECT_FALSE(coordinator_->receive(Clock::now() + 5ms));
  thread_.join();
  EXPECT_EQ(failure_, "broken");
}

TEST_F(LentWorker, ComesBackWhenTheCoordinatorIsGone) {
  lend();
  coordinator_.reset();
  thread_.join();
  EXPECT_TRUE(back_);
}

// The coordinator's thread looks for a while before it sleeps; both ends of that while must be heard.
TEST_F(LentWorker, OthersAreHeardWhileTheCoordinatorLooksAndWhileItSleeps) {
  lend();
  std::thread other([worker = std::shared_ptr<Transport>(hub_->connect())] {
    for (const auto pause : {0ms, 0ms, 20ms, 20ms}) {
      std::this_thread::sleep_for(pause);
      ASSERT_TRUE(worker->send(kCoordinatorPeer, Heartbeat{Generation(1)}).ok());
      ASSERT_TRUE(worker->receive(Clock::now() + 10s));
    }
  });
  for (int i = 0; i < 4; ++i) {
    const auto beat = coordinator_->receive(Clock::now() + 10s);
    ASSERT_TRUE(beat) << i;
    EXPECT_NE(beat->peer.value, peer_.value);
    ASSERT_TRUE(coordinator_->send(beat->peer, Heartbeat{}).ok());
  }
  other.join();
  coordinator_.reset();
}

// The first worker answers whatever it is asked, so something always waits to be read; the other still gets
// turns.
TEST_F(LentWorker, ABusyOneDoesNotStarveTheOther) {
  lend();
  std::atomic<int> other_turns{0};
  std::thread other = lend_one_that_counts(other_turns);
  const auto end = Clock::now() + 60s;
  for (uint64_t i = 1; other_turns < 3 && Clock::now() < end; ++i) ASSERT_EQ(ask(i), i + 1);
  EXPECT_GE(other_turns, 3);
  coordinator_.reset();
  other.join();
}

// Two workers where a turn takes longer than anybody should wait, as the passes of a large target do: whoever
// does nothing meanwhile waits for longer.
TEST_F(LentWorker, OneWithLongTurnsDoesNotStarveTheOther) {
  turn_takes_ = 25ms;
  lend();
  std::atomic<int> other_turns{0};
  std::thread other = lend_one_that_counts(other_turns);
  for (int i = 0; other_turns == 0 && i < 100; ++i) ASSERT_TRUE(ask(1));  // from here on it is lent
  const int before = other_turns;
  for (uint64_t i = 0; i < 10; ++i) ASSERT_EQ(ask(i), i + 1);
  EXPECT_GE(other_turns - before, 9);
  coordinator_.reset();
  other.join();
}

TEST_F(LentWorker, TwoOfThemServeOneCoordinator) {
  lend();
  std::thread other([this, worker = std::shared_ptr<Transport>(hub_->connect())] {
    ASSERT_TRUE(worker->send(kCoordinatorPeer, Heartbeat{Generation(0)}).ok());
    hub_->lend(*worker, [&] { return turn(*worker); });
  });
  const auto hello = coordinator_->receive(Clock::now() + 10s);
  ASSERT_TRUE(hello);
  ASSERT_TRUE(coordinator_->send(hello->peer, Heartbeat{Generation(70)}).ok());
  ASSERT_TRUE(coordinator_->send(peer_, Heartbeat{Generation(50)}).ok());
  std::set<uint64_t> answers;
  for (int i = 0; i < 2; ++i) {
    const auto answer = coordinator_->receive(Clock::now() + 10s);
    ASSERT_TRUE(answer);
    answers.insert(std::get<Heartbeat>(answer->message).generation.value());
  }
  EXPECT_EQ(answers, (std::set<uint64_t>{51, 71}));
  coordinator_.reset();
  other.join();
}

}  // namespace
}  // namespace outrider
