// Draft workers as processes, with a job that sends invalid messages. A worker exits with a code and a
// reason, or continues. A worker leaves when it is asked to.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <functional>

#include "comm/transport.h"
#include "tests/support/background_process.h"

namespace outrider::testing {
namespace {

using namespace std::chrono_literals;

constexpr SequenceId kSequence(1);

// Listens like a coordinator.
class LyingJob : public ::testing::Test {
 protected:
  BackgroundProcess worker(const std::vector<std::string>& drafter = {"--draft-model", demo_draft()}) {
    std::vector<std::string> arguments{outrider_path(),  "draft-worker", "--connect",
                                       job_->endpoint(), "--threads",    "1"};
    arguments.insert(arguments.end(), drafter.begin(), drafter.end());
    return BackgroundProcess(dir_, "worker", arguments);
  }
  // Until it says hello.
  bool hears_hello() {
    const auto deadline = Clock::now() + 60s;
    while (Clock::now() < deadline) {
      const auto incoming = job_->receive(deadline);
      const auto* hello = incoming ? std::get_if<Hello>(&incoming->message) : nullptr;
      if (!hello) continue;
      worker_ = incoming->peer;
      target_ = hello->model;
      target_.vocab_size = std::max(target_.vocab_size, 64);
      return true;
    }
    return false;
  }
  void tell(const Message& message) { ASSERT_TRUE(job_->send(worker_, message).ok()); }
  void welcome() { tell(Welcome{.accepted = true, .target = target_}); }
  void open() { tell(Open{.sequence = kSequence, .ids = ids_, .prompt_length = 4}); }
  // Until such a message comes.
  template <class Body>
  std::optional<Body> hears() {
    const auto deadline = Clock::now() + 20s;
    while (Clock::now() < deadline)
      if (auto incoming = job_->receive(deadline);
          incoming && std::holds_alternative<Body>(incoming->message))
        return std::get<Body>(std::move(incoming->message));
    return std::nullopt;
  }
  static void expect_to_leave_when_asked(BackgroundProcess& worker, int code = 0) {
    const auto asked = Clock::now();
    worker.signal(SIGTERM);
    EXPECT_EQ(worker.wait(10s), code) << worker.err();
    EXPECT_LT(Clock::now() - asked, 2s);
  }

  const TemporaryDirectory dir_;
  std::unique_ptr<Transport> job_ = make_zmq_server("tcp://127.0.0.1:*").value();
  PeerId worker_;
  ModelInfo target_;
  const std::vector<TokenId> ids_{TokenId(5), TokenId(6), TokenId(7), TokenId(8)};
};

TEST_F(LyingJob, EndsAWorkerWithTheNameOfTheField) {
  const std::pair<std::function<void()>, const char*> lies[] = {
      {[&] {
         tell(Open{.sequence = kSequence,
                   .ids = ids_,
                   .prompt_length = -1,
                   .sampling = {.repetition_penalty = 1.5f}});
       },
       "open: prompt_length is -1, not 1 to 4"},
      {[&] {
         tell(Open{.sequence = kSequence,
                   .ids = ids_,
                   .prompt_length = 1 << 30,
                   .sampling = {.repetition_penalty = 1.5f}});
       },
       "open: prompt_length is 1073741824, not 1 to 4"},
      {[&] { open(), tell(Propose{.sequence = kSequence, .base = Position(4), .gamma = -3}); },
       "propose: gamma is -3, not 0 to 4096"},
      {[&] {
         open(),
             tell(Propose{.sequence = kSequence, .base = Position(INT32_MAX), .committed = ids_, .gamma = 3});
       },
       "propose: base is 2147483647"},
  };
  for (const auto& [lie, reason] : lies) {
    BackgroundProcess child = worker();
    ASSERT_TRUE(hears_hello()) << child.err();
    welcome();
    lie();
    const auto failure = hears<Failure>();
    ASSERT_TRUE(failure);
    EXPECT_NE(failure->message.find(reason), std::string::npos) << failure->message;
    EXPECT_EQ(child.wait(20s), 2) << child.err();
    EXPECT_NE(child.err().find(std::string("the job broke the protocol: ") + reason), std::string::npos)
        << child.err();
  }
}

TEST_F(LyingJob, ThatAsksForAnotherKindOfDraftIsAnsweredAndLeft) {
  BackgroundProcess child = worker();
  ASSERT_TRUE(hears_hello()) << child.err();
  welcome();
  open();
  tell(Propose{.sequence = kSequence,
               .base = Position(4),
               .gamma = 3,
               .q_kind = QKind::kSparse,
               .row_bytes = 64,
               .pipeline = Pipeline::kFanout,
               .fanout = 8});
  EXPECT_TRUE(hears<Resync>());
  tell(Propose{.sequence = kSequence, .base = Position(4), .gamma = 3});
  const auto draft = hears<Draft>();
  EXPECT_TRUE(draft && draft->ids.size() == 3) << child.err();
  expect_to_leave_when_asked(child);
}

// The Welcome names endpoints that do not answer, and a name with a control sequence that would clear the
// screen.
TEST_F(LyingJob, IsLeftInTimeWhateverItsWelcomeNames) {
  BackgroundProcess child = worker({"--drafter", "ngram"});
  ASSERT_TRUE(hears_hello()) << child.err();
  target_.name = "\x1b[2J\xff";
  SliceEndpoints endpoints;
  for (int i = 0; i < 8; ++i) endpoints.of_rank.push_back({.endpoint = "tcp://127.0.0.1:1", .gpu = ""});
  tell(Welcome{.accepted = true, .target = target_, .slices = endpoints});
  ASSERT_TRUE(child.says("drafts for target '\\x1b[2J\uFFFD' at")) << child.err();
  expect_to_leave_when_asked(child);
}

TEST_F(LyingJob, ThatNeverWelcomesIsLeftWhenAsked) {
  BackgroundProcess child = worker({"--drafter", "ngram"});
  ASSERT_TRUE(hears_hello()) << child.err();
  tell(Heartbeat{});
  expect_to_leave_when_asked(child);
}

}  // namespace
}  // namespace outrider::testing
