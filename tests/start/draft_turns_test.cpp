// Sessions of a shared draft worker: each has a thread and a connection, and one thread computes for all.
#include "start/draft_turns.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/threads.h"
#include "comm/transport.h"

namespace outrider::testing {
namespace {

constexpr std::chrono::seconds kLong{20};

// Notes each call with the name of its session; work() runs `piece` while it is set.
class NotingDrafter final : public Drafter {
 public:
  NotingDrafter(std::string name, std::vector<std::string>& calls) : name_(std::move(name)), calls_(calls) {}
  Status open(const Open&) override { return note("open"); }
  void close(SequenceId) override {}
  Status begin(const Propose& propose) override {
    proposed_ = propose;
    return note("begin");
  }
  bool work(std::vector<DraftAnswer>& answers) override {
    threads_.push_back(std::this_thread::get_id());
    if (piece) {
      (void)note("work");
      return piece();
    }
    if (!proposed_) return false;
    (void)note("work");
    answers.push_back({.status = {}, .draft = {.sequence = proposed_->sequence, .ids = {TokenId(3)}}});
    proposed_.reset();
    return true;
  }
  Resync held(SequenceId sequence) const override {
    return {.sequence = sequence, .epoch = {}, .committed = {}};
  }
  int32_t max_context() const override { return 100; }

  std::function<bool()> piece;
  const std::vector<std::thread::id>& threads() const { return threads_; }

 private:
  Status note(const char* what) {
    calls_.push_back(name_ + " " + what);
    return {};
  }

  const std::string name_;
  std::vector<std::string>& calls_;
  std::optional<Propose> proposed_;
  std::vector<std::thread::id> threads_;
};

// A coordinator's end, and the worker's thread for it.
struct Side {
  std::unique_ptr<Transport> coordinator = make_zmq_server("tcp://127.0.0.1:*").value();
  std::unique_ptr<Transport> worker = make_zmq_client(coordinator->endpoint()).value();
  PeerId peer;

  Side() {
    EXPECT_TRUE(worker->send(kCoordinatorPeer, Hello{}).ok());
    const auto hello = coordinator->receive(Clock::now() + kLong);
    if (hello) peer = hello->peer;
  }
  Status send(const Message& message) const { return coordinator->send(peer, message); }
  // The next message of this kind.
  template <class Kind>
  std::optional<Kind> next() const {
    while (auto incoming = coordinator->receive(Clock::now() + kLong))
      if (auto* message = std::get_if<Kind>(&incoming->message)) return std::move(*message);
    return std::nullopt;
  }
};

class DraftTurnsTest : public ::testing::Test {
 protected:
  // As the sessions of a worker do; `beside` is the test's part.
  void serve_while(const std::function<void()>& beside) {
    run_on_threads(4, [&](int thread) {
      if (thread == 0) {
        computing_ = std::this_thread::get_id();
        try {
          turns_.run();
        } catch (const std::exception& error) {
          failure_ = error.what();
        }
      } else if (thread == 3) {
        beside();
        leaves_ = true;  // whatever became of it
      } else {
        const auto session = static_cast<size_t>(thread - 1);
        DraftWorker worker(drafters_[session], *sides_[session].worker,
                           {.asked_to_leave = [this] { return leaves_.load(); }});
        try {
          turns_.serve(session, worker, *sides_[session].worker);
          ends_[session] = worker.finish();
        } catch (const std::exception& error) {
          ends_[session] = unavailable(error.what());
        }
        turns_.leave();
      }
    });
  }

  std::vector<std::string> calls_;
  NotingDrafter drafters_[2] = {{"a", calls_}, {"b", calls_}};
  Side sides_[2];
  Clock::time_point time_;  // of the computing thread: work takes as long as the test says
  DraftTurns turns_{{1, 1}, nullptr, [this] { return time_; }};
  std::atomic<bool> leaves_ = false;
  std::thread::id computing_;
  Status ends_[2];
  std::string failure_;
};

const Propose kPropose{.sequence = SequenceId(1), .base = Position(1), .gamma = 1};

TEST_F(DraftTurnsTest, EachCoordinatorGetsItsDrafts) {
  serve_while([&] {
    for (int i = 0; i < 5; ++i)
      for (const Side& side : sides_) {
        EXPECT_TRUE(side.send(kPropose).ok());
        const auto draft = side.next<Draft>();
        ASSERT_TRUE(draft);
        EXPECT_EQ(draft->ids, std::vector<TokenId>{TokenId(3)});
      }
    for (const Side& side : sides_) EXPECT_TRUE(side.send(Shutdown{}).ok());
  });
  for (const NotingDrafter& drafter : drafters_)
    for (const auto thread : drafter.threads()) EXPECT_EQ(thread, computing_);
  EXPECT_TRUE(ends_[0].ok() && ends_[1].ok()) << ends_[0].message() << ends_[1].message();
}

// One session always has work. The other's draft comes after at most one more piece of it.
TEST_F(DraftTurnsTest, EndlessWorkOfOneHoldsUpNobody) {
  drafters_[0].piece = [this] {
    time_ += std::chrono::milliseconds(1);
    return true;
  };
  serve_while([&] {
    EXPECT_TRUE(sides_[0].send(kPropose).ok());
    for (int i = 0; i < 20; ++i) {
      EXPECT_TRUE(sides_[1].send(kPropose).ok());
      EXPECT_TRUE(sides_[1].next<Draft>());
    }
    for (const Side& side : sides_) EXPECT_TRUE(side.send(Shutdown{}).ok());
  });
  int drafts = 0;
  for (size_t i = 0; i < calls_.size(); ++i) {
    if (calls_[i] != "b begin") continue;
    ++drafts;
    EXPECT_TRUE(calls_.at(i + 1) == "b work" || calls_.at(i + 2) == "b work") << i;
  }
  EXPECT_EQ(drafts, 20);
  EXPECT_GT(turns_.used(0), TurnOrder::Time(0));
  EXPECT_EQ(turns_.used(1), TurnOrder::Time(0));
}

// A coordinator that sends nonsense, and one that is gone, end their own session only.
TEST_F(DraftTurnsTest, AnEndConcernsOneSession) {
  serve_while([&] {
    EXPECT_TRUE(sides_[0].send(Propose{.sequence = SequenceId(1), .base = Position(1), .gamma = -7}).ok());
    EXPECT_TRUE(sides_[0].next<Failure>());
    sides_[0].coordinator.reset();
    EXPECT_TRUE(sides_[1].send(kPropose).ok());
    EXPECT_TRUE(sides_[1].next<Draft>());
    EXPECT_TRUE(sides_[1].send(Shutdown{}).ok());
  });
  EXPECT_EQ(ends_[0].code(), StatusCode::kMalformed) << ends_[0].message();
  EXPECT_TRUE(ends_[1].ok()) << ends_[1].message();
}

TEST_F(DraftTurnsTest, AllSayGoodbyeWhenAsked) {
  serve_while([&] {
    EXPECT_TRUE(sides_[0].send(kPropose).ok());
    EXPECT_TRUE(sides_[0].next<Draft>());
    leaves_ = true;
    for (const Side& side : sides_) {
      EXPECT_TRUE(side.next<Shutdown>());
      EXPECT_TRUE(side.send(Shutdown{}).ok());
    }
  });
  EXPECT_TRUE(ends_[0].ok() && ends_[1].ok());
}

// A broken model ends every session.
TEST_F(DraftTurnsTest, WorkThatThrowsEndsAll) {
  drafters_[0].piece = []() -> bool { throw std::runtime_error("the device is lost"); };
  serve_while([&] {
    EXPECT_TRUE(sides_[0].send(kPropose).ok());
    while (!turns_.has_failed()) std::this_thread::yield();
  });
  EXPECT_EQ(failure_, "the device is lost");
  EXPECT_TRUE(turns_.has_failed());
  for (const Status& end : ends_) EXPECT_EQ(end.message(), "the device is lost");
  bool ran = false;
  turns_.compute(1, [&] { ran = true; });
  EXPECT_TRUE(ran) << "what a session must clear away runs all the same";
}

TEST(DraftTurnsBodies, RunOnTheComputingThreadAndThrowToTheirSession) {
  DraftTurns turns({1, 1}, nullptr);
  std::thread::id computing, ran;
  std::string thrown;
  run_on_threads(3, [&](int thread) {
    if (thread == 0) {
      computing = std::this_thread::get_id();
      return turns.run();
    }
    if (thread == 1) turns.compute(0, [&] { ran = std::this_thread::get_id(); });
    if (thread == 2) {
      try {
        turns.compute(1, [] { throw std::runtime_error("no memory"); });
      } catch (const std::exception& error) {
        thrown = error.what();
      }
    }
    turns.leave();
  });
  EXPECT_EQ(ran, computing);
  EXPECT_EQ(thrown, "no memory");
  EXPECT_FALSE(turns.has_failed());
}

}  // namespace
}  // namespace outrider::testing
