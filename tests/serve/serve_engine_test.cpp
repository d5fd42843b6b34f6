// The engine under real models: requests that come and go from any thread, limits, and its end.
#include <gtest/gtest.h>

#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/program/exit_codes.h"
#include "launch/commands/generate.h"
#include "requests/requests.h"
#include "served_pair.h"
#include "start/describe.h"
#include "start/flags/options.h"
#include "tests/support/temporary_directory.h"
#include "text/chat_template/chat_template.h"

namespace outrider::testing {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

std::shared_ptr<Client> new_client() { return std::make_shared<Client>(); }

// Nothing but being woken makes it look at what it was given.
EngineLimits sleepy(EngineLimits limits = {}) {
  limits.look_up = hours(1);
  return limits;
}

class EngineBesideGenerate : public ::testing::TestWithParam<int> {
 protected:
  static constexpr int kRequests = 8;

  // The texts that `generate` writes for these requests.
  std::vector<std::string> texts(const RunOptions& options) {
    EXPECT_EQ(run_generate(options), kExitOk);
    std::ifstream in(options.files.output);
    std::vector<std::string> texts;
    for (std::string line; std::getline(in, line);) texts.push_back(nlohmann::json::parse(line)["text"]);
    return texts;
  }

  RunOptions options() {
    std::string lines;
    for (int i = 0; i < kRequests; ++i)
      lines += nlohmann::json{{"prompt", i % 3 == 0 ? "Once upon a time" : "The little dog"},
                              {"seed", i},
                              {"temperature", i % 2 == 0 ? 0.8 : 0.0},
                              {"max_tokens", 12 + 5 * i},
                              {"stop", {"zzz"}}}
                   .dump() +
               "\n";
    RunOptions options{.cluster = demo_pair()};
    options.cluster.speculation.num_speculative_tokens = 4;  // also where drafting would not pay
    options.files.prompts = directory_.write("in.jsonl", lines);
    options.files.output = directory_ / "out.jsonl";
    return options;
  }
  TemporaryDirectory directory_;
};

TEST_P(EngineBesideGenerate, TheTextIsTheSame) {
  const int clients = GetParam();
  const RunOptions run = options();
  const auto expected = texts(run);
  ASSERT_EQ(expected.size(), size_t{kRequests});
  ServedPair served(run.cluster, {.limits = sleepy()});
  const auto requests = read_requests(run.request, run.files.prompts,
                                      request_model(run.cluster.models, run.cluster.speculation,
                                                    served.prepared(), not_found("no template")));
  ASSERT_TRUE(requests.ok()) << requests.status().message();
  {
    std::vector<std::jthread> threads;
    for (int c = 0; c < clients; ++c)
      threads.emplace_back([&, c] {
        for (int i = c; i < kRequests; i += clients) {
          const auto client = new_client();
          served.submit((*requests)[static_cast<size_t>(i)].request, client);
          const Finish end = client->wait_for_end();
          EXPECT_TRUE(end.error.ok()) << end.error.message();
          EXPECT_EQ(client->text(), expected[static_cast<size_t>(i)]) << "request " << i;
        }
      });
  }
  const EngineNumbers numbers = served.engine().numbers();
  EXPECT_EQ(numbers.totals.submitted, kRequests);
  EXPECT_EQ(numbers.totals.finished[0] + numbers.totals.finished[1], kRequests);
  EXPECT_EQ(numbers.totals.e2e.count(), kRequests);
  EXPECT_GT(numbers.totals.rounds.accepted, 0);
  EXPECT_EQ(numbers.running, 0);
  EXPECT_EQ(numbers.waiting, 0);
  EXPECT_EQ(numbers.draft_workers, 1);
  EXPECT_TRUE(served.end().ok());
}

INSTANTIATE_TEST_SUITE_P(Clients, EngineBesideGenerate, ::testing::Values(1, 8));

// Behind sockets and an emulated link, waking goes another way.
TEST(ServeEngine, IsWokenThroughEveryTransport) {
  for (const char* listen : {"", "tcp://127.0.0.1:*"})
    for (const char* link : {"", "delay=1us,links=all"}) {
      ClusterSettings options = demo_pair(/*drafts=*/false);
      options.pool.listen = listen;
      options.pool.wait_for_draft_workers = 0;
      options.speculation.emulate_link = link;
      ServedPair served(options, {.limits = sleepy()});
      for (int i = 0; i < 3; ++i) {
        const auto client = new_client();
        served.submit(served.request("Once", 2), client);
        EXPECT_EQ(client->wait_for_end().reason, FinishReason::kLength);
      }
    }
}

// Holds the engine up where a client gets its first token.
class Gate {
 public:
  explicit Gate(Client& client) {
    client.on_first_token = [this] {
      reached_.set_value();
      opened_.get_future().wait();
    };
  }
  void wait_until_reached() { reached_.get_future().wait(); }
  void open() { opened_.set_value(); }

 private:
  std::promise<void> reached_, opened_;
};

constexpr int kLong = 400;  // tokens of a text that the test does not wait for

// A list of many texts does not delay another client's single text.
TEST(ServeEngine, ClientsTakeTurns) {
  ClusterSettings options = demo_pair();
  options.models.max_num_seqs = 1;
  ServedPair served(options, {.limits = sleepy({.max_num_seqs = 1})});
  std::mutex mutex;
  std::vector<int> order;
  const auto finisher = [&](int who) {
    class Noted final : public RequestSink {
     public:
      Noted(std::function<void()> noted) : noted_(std::move(noted)) {}
      void emitted(const Emit&) override {}
      void finished(const Finish&) override { noted_(); }
      std::function<void()> noted_;
    };
    return std::make_shared<Noted>([&, who] {
      const std::lock_guard lock(mutex);
      order.push_back(who);
    });
  };
  const auto blocker = new_client();
  Gate gate(*blocker);
  served.submit(served.request("Once upon a time", 2), blocker);
  gate.wait_until_reached();
  std::vector<Submission> many;
  for (int i = 0; i < 20; ++i) many.push_back({served.request("The dog", 2), finisher(1)});
  ASSERT_TRUE(served.engine().submit_all(std::move(many), "list").ok());
  std::vector<Submission> few;
  for (int i = 0; i < 2; ++i) few.push_back({served.request("A cat", 2), finisher(2)});
  ASSERT_TRUE(served.engine().submit_all(std::move(few), "other").ok());
  gate.open();
  const auto last = new_client();
  std::vector<Submission> after;
  after.push_back({served.request("She", 2), last});
  ASSERT_TRUE(served.engine().submit_all(std::move(after), "third").ok());
  last->wait_for_end();
  EXPECT_TRUE(served.end().ok());
  ASSERT_EQ(order.size(), 22u);
  EXPECT_LE(std::count(order.begin(), std::find(order.begin(), order.end(), 2), 1), 2)
      << "the list took its turn";
  const auto second = std::find(std::find(order.begin(), order.end(), 2) + 1, order.end(), 2);
  EXPECT_LE(std::count(order.begin(), second, 1), 3);
}

TEST(ServeEngine, TellsWhenToComeBack) {
  ClusterSettings options = demo_pair();
  ServedPair served(options, {.limits = sleepy({.max_num_seqs = 1, .max_queued_requests = 1})});
  EXPECT_EQ(served.engine().retry_after().count(), 1) << "nothing is known";
  const auto client = new_client();
  served.submit(served.request("Once", 2), client);
  client->wait_for_end();
  EXPECT_LE(served.engine().retry_after().count(), 60);
}

TEST(ServeEngine, CancellingFreesThePlaceAtOnce) {
  ClusterSettings options = demo_pair();
  options.models.max_num_seqs = 1;
  ServedPair served(options, {.limits = sleepy({.max_num_seqs = 1})});
  const auto first = new_client(), second = new_client();
  Gate gate(*first);
  const Ticket ticket = served.submit(served.request("Once upon a time", kLong), first);
  served.submit(served.request("The dog", 3), second);
  gate.wait_until_reached();
  served.engine().cancel(ticket);
  served.engine().cancel(ticket);
  gate.open();
  EXPECT_EQ(first->wait_for_end().reason, FinishReason::kCancelled);
  EXPECT_EQ(second->wait_for_end().reason, FinishReason::kLength);
  EXPECT_LT(first->ids().size(), size_t{kLong});
  served.engine().cancel(ticket);
  EXPECT_TRUE(served.end().ok());
  EXPECT_EQ(first->ends(), 1);
  EXPECT_EQ(served.engine().numbers().totals.finished[static_cast<size_t>(FinishReason::kCancelled)], 1);
}

TEST(ServeEngine, WhoIsCancelledBeforeItBeginsCostsNothing) {
  ServedPair served(demo_pair(), {.limits = sleepy()});
  const auto blocker = new_client(), other = new_client();
  Gate gate(*blocker);
  served.submit(served.request("Once upon a time", 4), blocker);
  gate.wait_until_reached();
  served.engine().cancel(served.submit(served.request("The dog", 4), other));
  gate.open();
  EXPECT_EQ(other->wait_for_end().reason, FinishReason::kCancelled);
  EXPECT_EQ(blocker->wait_for_end().reason, FinishReason::kLength);
  EXPECT_TRUE(served.end().ok());
  EXPECT_TRUE(other->ids().empty());
  const Totals totals = served.engine().numbers().totals;
  EXPECT_EQ(totals.submitted, 2);
  EXPECT_EQ(totals.finished[static_cast<size_t>(FinishReason::kCancelled)], 1);
  EXPECT_EQ(totals.prompt_tokens, static_cast<int64_t>(served.request("Once upon a time", 4).prompt.size()));
}

TEST(ServeEngine, RefusesWhatFindsNoRoomInTheQueue) {
  ClusterSettings options = demo_pair();
  options.models.max_num_seqs = 1;
  const EngineLimits limits{.max_num_seqs = 1, .max_queued_requests = 2, .max_queued_tokens = 100};
  ServedPair served(options, {.limits = limits});
  const auto running = new_client(), one = new_client(), two = new_client(), late = new_client();
  Gate gate(*running);
  const Ticket ticket = served.submit(served.request("Once upon a time", kLong), running);
  gate.wait_until_reached();
  Request prompt_of_99 = served.request("Once", 1);
  prompt_of_99.prompt.resize(99, prompt_of_99.prompt.front());
  served.submit(std::move(prompt_of_99), one);
  const auto too_many_tokens = served.engine().submit(served.request("The little dog", 1), late);
  EXPECT_EQ(too_many_tokens.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(too_many_tokens.status().message().find("--max-queued-tokens"), std::string::npos);
  Request prompt_of_1 = served.request("Once", 1);
  prompt_of_1.prompt.resize(1);
  served.submit(prompt_of_1, two);
  const auto too_many = served.engine().submit(prompt_of_1, late);
  EXPECT_EQ(too_many.status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(served.engine().numbers().waiting, 2);
  EXPECT_EQ(served.engine().numbers().refused, 2);
  EXPECT_EQ(served.engine().numbers().running, 1);
  served.engine().cancel(ticket);
  gate.open();
  EXPECT_EQ(one->wait_for_end().reason, FinishReason::kLength);
  EXPECT_EQ(two->wait_for_end().reason, FinishReason::kLength);
  served.submit(prompt_of_1, late);
  EXPECT_EQ(late->wait_for_end().reason, FinishReason::kLength);
  EXPECT_EQ(late->ends(), 1);
}

// To come back later would not help.
TEST(ServeEngine, WhatAnIdleServerCouldNeverTakeIsNotForLater) {
  ClusterSettings options = demo_pair();
  options.models.max_num_seqs = 1;
  const EngineLimits limits{.max_num_seqs = 1, .max_queued_requests = 2, .max_queued_tokens = 100};
  ServedPair served(options, {.limits = limits});
  const auto submit = [&](int count, size_t prompt_tokens, std::vector<std::shared_ptr<Client>>& clients) {
    std::vector<Submission> all;
    for (int i = 0; i < count; ++i) {
      Request request = served.request("Once", 1);
      request.prompt.resize(prompt_tokens, request.prompt.front());
      all.push_back({std::move(request), clients.emplace_back(new_client())});
    }
    return served.engine().submit_all(std::move(all)).status();
  };
  std::vector<std::shared_ptr<Client>> refused, taken;
  const auto expect_refusal = [&](int count, size_t prompt_tokens, const std::string& flag) {
    const Status status = submit(count, prompt_tokens, refused);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
    EXPECT_NE(status.message().find(flag), std::string::npos) << status.message();
  };
  for (const bool busy : {false, true}) {
    SCOPED_TRACE(busy);
    const auto blocker = new_client();
    Gate gate(*blocker);
    if (busy) {
      served.submit(served.request("Once upon a time", 4), blocker);
      gate.wait_until_reached();
    }
    expect_refusal(3, 34, "102 prompt tokens");
    expect_refusal(2, 51, "--max-queued-tokens");
    expect_refusal(4, 1, "--max-queued-requests 2");
    if (busy) {
      EXPECT_EQ(submit(3, 33, refused).code(), StatusCode::kResourceExhausted);
      gate.open();
      EXPECT_EQ(blocker->wait_for_end().reason, FinishReason::kLength);
    }
  }
  EXPECT_EQ(served.engine().numbers().refused, 3);
  EXPECT_TRUE(submit(3, 33, taken).ok());
  for (const auto& client : taken) EXPECT_EQ(client->wait_for_end().reason, FinishReason::kLength);
  EXPECT_TRUE(submit(1, 300, taken).ok()) << "who waits for nobody is not measured";
  EXPECT_EQ(taken.back()->wait_for_end().reason, FinishReason::kLength);
}

TEST(ServeEngine, WhatTheTargetCannotTakeEndsWithAnError) {
  ServedPair served(demo_pair(), {});
  const auto client = new_client();
  Request request = served.request("Once", 4);
  request.prompt.push_back(TokenId(1 << 30));
  served.submit(request, client);
  const Finish end = client->wait_for_end();
  EXPECT_EQ(end.reason, FinishReason::kError);
  EXPECT_EQ(end.error.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(served.engine().status().state, EngineState::kReady);
}

TEST(ServeEngine, DrainsWhatIsOpenAndTakesNoMore) {
  ServedPair served(demo_pair(), {.limits = sleepy()});
  const auto client = new_client(), late = new_client();
  EXPECT_EQ(served.engine().status().state, EngineState::kReady);
  Gate gate(*client);
  served.submit(served.request("Once upon a time", 20), client);
  gate.wait_until_reached();
  served.ask_to_drain();
  gate.open();
  while (served.engine().status().state == EngineState::kReady) std::this_thread::yield();
  const auto refused = served.engine().submit(served.request("The dog", 1), late);
  EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(client->wait_for_end().reason, FinishReason::kLength);
  EXPECT_EQ(client->ids().size(), 20u);
  EXPECT_TRUE(served.end().ok());
  EXPECT_EQ(served.engine().status().state, EngineState::kDraining);
  EXPECT_EQ(late->ends(), 0);
}

TEST(ServeEngine, CancelsWhatTheDrainLimitLeaves) {
  ClusterSettings options = demo_pair();
  options.models.max_num_seqs = 1;
  ServedPair served(options, {.limits = sleepy({.max_num_seqs = 1}), .drain_limit = milliseconds(0)});
  const auto running = new_client(), waiting = new_client();
  Gate gate(*running);
  served.submit(served.request("Once upon a time", kLong), running);
  served.submit(served.request("The dog", kLong), waiting);
  gate.wait_until_reached();
  served.ask_to_drain();
  gate.open();
  EXPECT_TRUE(served.end().ok());
  EXPECT_EQ(running->wait_for_end().reason, FinishReason::kCancelled);
  EXPECT_EQ(waiting->wait_for_end().reason, FinishReason::kCancelled);
}

// A coordinator's end of a transport that reports a failure of the target.
class FailingTarget final : public Transport {
 public:
  FailingTarget(std::unique_ptr<Transport> inner, const std::atomic<bool>& fails)
      : inner_(std::move(inner)), fails_(fails) {}
  Status send(PeerId to, const Message& message) override { return inner_->send(to, message); }
  std::optional<Incoming> receive(Clock::time_point deadline) override {
    auto incoming = inner_->receive(deadline);
    if (!incoming || !fails_ || !std::holds_alternative<StepResult>(incoming->message)) return incoming;
    incoming->message = Failure{"a rank is gone"};
    return incoming;
  }
  std::function<void()> waker() override { return inner_->waker(); }
  const TransportStats& stats() const override { return inner_->stats(); }

 private:
  const std::unique_ptr<Transport> inner_;
  const std::atomic<bool>& fails_;
};

TEST(ServeEngine, WhenTheTargetFailsEverybodyIsToldAndNobodyElseIsTaken) {
  std::atomic<bool> fails{false};
  ClusterSettings options = demo_pair();
  options.models.max_num_seqs = 2;
  ServedPair served(options, {.limits = sleepy({.max_num_seqs = 2}), .wire = [&](auto end) {
                                return std::make_unique<FailingTarget>(std::move(end), fails);
                              }});
  std::vector<std::shared_ptr<Client>> clients;
  for (int i = 0; i < 4; ++i) clients.push_back(new_client());
  Gate gate(*clients[0]);
  for (const auto& client : clients) served.submit(served.request("Once upon a time", kLong), client);
  gate.wait_until_reached();
  fails = true;
  gate.open();
  for (const auto& client : clients) {
    const Finish end = client->wait_for_end();
    EXPECT_EQ(end.reason, FinishReason::kError);
    EXPECT_EQ(end.error.code(), StatusCode::kUnavailable);
    EXPECT_NE(end.error.message().find("a rank is gone"), std::string::npos) << end.error.message();
  }
  EXPECT_EQ(served.end().code(), StatusCode::kUnavailable);
  EXPECT_EQ(served.engine().status().state, EngineState::kFailed);
  EXPECT_NE(served.engine().status().reason.find("a rank is gone"), std::string::npos);
  const auto late = new_client();
  EXPECT_EQ(served.engine().submit(served.request("The dog", 1), late).status().code(),
            StatusCode::kUnavailable);
}

TEST(ServeEngine, OneThatHoldsRequestsAndDoesNotMoveIsNotHealthy) {
  ServedPair served(demo_pair(), {.limits = {.stall_limit = milliseconds(200)}});
  const auto client = new_client();
  Gate gate(*client);
  served.submit(served.request("Once upon a time", 5), client);
  while (served.engine().status().state == EngineState::kReady) std::this_thread::yield();
  EXPECT_EQ(served.engine().status().state, EngineState::kFailed);
  EXPECT_NE(served.engine().status().reason.find("has not moved"), std::string::npos);
  EXPECT_EQ(served.engine().submit(served.request("The dog", 1), new_client()).status().code(),
            StatusCode::kUnavailable);
  gate.open();
  EXPECT_EQ(client->wait_for_end().reason, FinishReason::kLength);
  EXPECT_EQ(served.engine().status().state, EngineState::kReady) << "it moves again";
}

// Requests that come and go in every order; what remains is counted.
TEST(ServeEngine, NobodyIsForgottenUnderHaste) {
  ClusterSettings options = demo_pair();
  options.models.max_num_seqs = 4;
  ServedPair served(options, {.limits = sleepy({.max_num_seqs = 4, .max_queued_requests = 1000})});
  constexpr int kThreads = 4, kEach = 25;
  std::atomic<int> ended{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        std::vector<std::shared_ptr<Client>> clients;
        for (int i = 0; i < kEach; ++i) {
          const Ticket ticket = served.submit(served.request("Once upon a time", 1 + (t + i) % 7),
                                              clients.emplace_back(new_client()));
          if (i % 3 == 0) clients.back()->wait_for_tokens(1);
          if (i % 2 == 0) served.engine().cancel(ticket);
        }
        for (const auto& client : clients) {
          client->wait_for_end();
          ended += client->ends();
        }
      });
  }
  EXPECT_TRUE(served.end().ok());
  EXPECT_EQ(ended, kThreads * kEach);
  const EngineNumbers numbers = served.engine().numbers();
  EXPECT_EQ(numbers.running, 0);
  EXPECT_EQ(numbers.waiting, 0);
}

}  // namespace
}  // namespace outrider::testing
