// How a draft worker's loop ends.
#include "draft_worker/draft_worker.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "comm/transport.h"

namespace outrider::testing {
namespace {

// Has one answer to give, after `meanwhile`.
class OneAnswer final : public Drafter {
 public:
  explicit OneAnswer(std::function<void()> meanwhile) : meanwhile_(std::move(meanwhile)) {}
  Status open(const Open&) override { return {}; }
  void close(SequenceId) override {}
  Status begin(const Propose&) override { return {}; }
  bool work(std::vector<DraftAnswer>& answers) override {
    if (!meanwhile_) return false;
    std::exchange(meanwhile_, {})();
    answers.emplace_back();
    return true;
  }
  Resync held(SequenceId) const override { return {}; }
  int32_t max_context() const override { return 1; }

 private:
  std::function<void()> meanwhile_;
};

class EndOfDraftWorker : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "inproc") {
      const auto hub = make_inproc_hub();
      coordinator_ = hub->coordinator_end();
      worker_ = hub->connect();
    } else {
      coordinator_ = make_zmq_server("tcp://127.0.0.1:*").value();
      worker_ = make_zmq_client(coordinator_->endpoint()).value();
    }
    ASSERT_TRUE(worker_->send(kCoordinatorPeer, Hello{}).ok());
    const auto hello = coordinator_->receive(Clock::now() + std::chrono::seconds(10));
    ASSERT_TRUE(hello);
    peer_ = hello->peer;
  }

  // Returns when the worker would notice.
  void coordinator_goes() {
    coordinator_.reset();
    while (worker_->send(kCoordinatorPeer, Heartbeat{}).code() != StatusCode::kUnavailable)
      std::this_thread::yield();
  }

  std::unique_ptr<Transport> coordinator_, worker_;
  PeerId peer_;
};

TEST_P(EndOfDraftWorker, ToldToGoWhileItDrafts) {
  OneAnswer drafter([this] {
    ASSERT_TRUE(coordinator_->send(peer_, Heartbeat{}).ok());
    ASSERT_TRUE(coordinator_->send(peer_, Shutdown{}).ok());
    coordinator_goes();
  });
  const Status end = DraftWorker(drafter, *worker_, {}).serve();
  EXPECT_TRUE(end.ok()) << end.message();
}

// In one process the end of a coordinator is its Shutdown, however it comes about.
TEST_P(EndOfDraftWorker, TheCoordinatorBreaksWhileItDrafts) {
  OneAnswer drafter([this] {
    ASSERT_TRUE(coordinator_->send(peer_, Heartbeat{}).ok());
    coordinator_goes();
  });
  const Status end = DraftWorker(drafter, *worker_, {}).serve();
  EXPECT_EQ(end.code(), GetParam() == "inproc" ? StatusCode::kOk : StatusCode::kUnavailable);
}

// A worker that is lent may not wait for the answer to its hello: its turns take it in.
TEST(DraftWorkerTurns, TakeTheAnswerToTheHello) {
  struct Case {
    std::optional<Message> answer;
    bool stays;
    StatusCode end;
  };
  const ModelInfo target{.name = "t", .vocab_size = 8, .max_context = 10};
  const Case cases[] = {
      {Welcome{.accepted = true, .target = target}, true, StatusCode::kOk},
      {Welcome{.accepted = false, .reason = "no"}, false, StatusCode::kInvalidArgument},
      {Welcome{.accepted = true, .target = {.vocab_size = -1}}, false, StatusCode::kMalformed},
      {Shutdown{}, false, StatusCode::kOk},
      {std::nullopt, true, StatusCode::kOk},
  };
  for (const Case& c : cases) {
    const auto hub = make_inproc_hub();
    const auto coordinator = hub->coordinator_end();
    const auto wire = hub->connect();
    OneAnswer drafter({});
    DraftWorker worker(drafter, *wire, {.process = 7});
    ASSERT_TRUE(worker.begin_to_join().ok());
    EXPECT_TRUE(worker.turn()) << "nothing was said yet";
    const auto hello = coordinator->receive(Clock::now() + std::chrono::seconds(10));
    ASSERT_TRUE(hello);
    EXPECT_EQ(std::get<Hello>(hello->message).process, 7u);
    if (c.answer) {
      ASSERT_TRUE(coordinator->send(hello->peer, *c.answer).ok());
    }
    EXPECT_EQ(worker.turn(), c.stays);
    EXPECT_EQ(worker.end().code(), c.end) << worker.end().message();
  }
}

TEST(DraftWorkerTurns, EndWhereNobodyAnswersTheHello) {
  const auto hub = make_inproc_hub();
  const auto coordinator = hub->coordinator_end();
  const auto wire = hub->connect();
  OneAnswer drafter({});
  DraftWorker worker(drafter, *wire, {.join_timeout = std::chrono::milliseconds(0)});
  ASSERT_TRUE(worker.begin_to_join().ok());
  EXPECT_FALSE(worker.turn());
  EXPECT_EQ(worker.end().code(), StatusCode::kDeadlineExceeded);
}

// Has one place.
class OnePlace final : public Drafter {
 public:
  Status open(const Open& open) override {
    if (held_) return resource_exhausted("full");
    held_ = open.sequence;
    return {};
  }
  void close(SequenceId sequence) override {
    if (held_ == sequence) held_.reset();
  }
  Status begin(const Propose&) override { return {}; }
  bool work(std::vector<DraftAnswer>&) override { return false; }
  Resync held(SequenceId sequence) const override {
    return {.sequence = sequence, .epoch = {}, .committed = {}};
  }
  int32_t max_context() const override { return 100; }

 private:
  std::optional<SequenceId> held_;
};

// The Close of the first sequence was lost: the worker asks about it when another has no place.
TEST(DraftWorkerPlaces, AreNotLostWithAClose) {
  const auto hub = make_inproc_hub();
  const auto coordinator = hub->coordinator_end();
  const auto wire = hub->connect();
  OnePlace drafter;
  DraftWorker worker(drafter, *wire, {});
  const auto open = [](uint64_t sequence) {
    return Open{.sequence = SequenceId(sequence), .ids = {TokenId(1)}, .prompt_length = 1, .sampling = {}};
  };
  worker.handle(open(1));
  worker.handle(open(2));
  const auto asked = coordinator->receive(Clock::now() + std::chrono::seconds(10));
  ASSERT_TRUE(asked);
  const auto* about = std::get_if<Resync>(&asked->message);
  ASSERT_TRUE(about);
  EXPECT_EQ(about->sequence, SequenceId(1));
  worker.handle(Close{SequenceId(1)});
  worker.handle(open(2));
  EXPECT_FALSE(coordinator->receive(Clock::now() + std::chrono::milliseconds(10))) << "there was room";
}

INSTANTIATE_TEST_SUITE_P(Carriers, EndOfDraftWorker, ::testing::Values("inproc", "zeromq"),
                         [](const auto& carrier) { return carrier.param; });

}  // namespace
}  // namespace outrider::testing
