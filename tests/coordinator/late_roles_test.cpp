// The real loop and a real draft worker on a virtual clock. A role joins late, or a process pauses. Both runs
// end well, in milliseconds of real time.
#include <gtest/gtest.h>

#include <deque>
#include <optional>

#include "coordinator/coordinator.h"
#include "coordinator/gamma/policies.h"
#include "draft_worker/draft_worker.h"
#include "draft_worker/text/text_drafter.h"
#include "toy_model.h"
#include "toy_target.h"
#include "toy_tokenizer.h"

namespace outrider {
namespace {

using namespace std::chrono_literals;

constexpr PeerId kTarget{1}, kWorker{2};

// Queues of messages, and the time, which passes only while the coordinator waits.
struct RoleWorld {
  Clock::time_point now{1h};
  std::deque<Incoming> to_coordinator;
  std::map<PeerId, std::deque<Message>> to_worker;
  std::function<void()> others;  // what the other roles do at this time
};

class CoordinatorEnd final : public Transport {
 public:
  explicit CoordinatorEnd(RoleWorld& world) : world_(world) {}
  Status send(PeerId to, const Message& message) override {
    world_.to_worker[to].push_back(message);
    return {};
  }
  std::optional<Incoming> receive(Clock::time_point deadline) override {
    constexpr auto kStep = 50ms;
    while (world_.to_coordinator.empty()) {
      world_.others();
      if (!world_.to_coordinator.empty()) break;
      if (world_.now >= deadline) return std::nullopt;
      world_.now = std::min(deadline, world_.now + kStep);
    }
    Incoming first = std::move(world_.to_coordinator.front());
    world_.to_coordinator.pop_front();
    return first;
  }
  const TransportStats& stats() const override { return stats_; }

 private:
  RoleWorld& world_;
  TransportStats stats_;
};

class RoleEnd final : public Transport {
 public:
  RoleEnd(RoleWorld& world, PeerId self) : world_(world), self_(self) {}
  Status send(PeerId, const Message& message) override {
    world_.to_coordinator.push_back({.peer = self_, .message = message});
    return {};
  }
  std::optional<Incoming> receive(Clock::time_point) override {
    auto& mine = world_.to_worker[self_];
    if (mine.empty()) return std::nullopt;
    Incoming first{.peer = kCoordinatorPeer, .message = std::move(mine.front())};
    mine.pop_front();
    return first;
  }
  const TransportStats& stats() const override { return stats_; }

 private:
  RoleWorld& world_;
  const PeerId self_;
  TransportStats stats_;
};

ModelInfo info(uint64_t vocabulary) {
  return {.name = "toy",
          .vocab_size = kToyVocab,
          .vocabulary_fingerprint = vocabulary,
          .max_context = 96,
          .isa = ""};
}

class LateRoles : public ::testing::Test {
 protected:
  // Roles begin at these times.
  void begin(Clock::duration target, Clock::duration worker, Clock::duration coordinator) {
    target_begins_ = world_.now + target;
    worker_begins_ = world_.now + worker;
    world_.others = [this] { others(); };
    for (const auto end = world_.now + coordinator; world_.now < end; world_.now += 50ms) others();
    ProtocolOptions options;
    options.eos_ids = {kToyEos};
    options.target_join_timeout = 600s;
    options.one_process = one_process_;
    CoordinatorCallbacks callbacks;
    callbacks.on_emit = [this](const Emit& emit) {
      text_.insert(text_.end(), emit.ids.begin(), emit.ids.end());
    };
    callbacks.on_finish = [this](const Finish& finish) { error_ = finish.error; };
    callbacks.clock = [this] { return world_.now; };
    coordinator_ = std::make_unique<Coordinator>(
        std::make_unique<CoordinatorEnd>(world_), options,
        [] { return make_heuristic_gamma({.start = 3, .min = 1, .max = 6, .guard = false}); }, &tokenizer_,
        callbacks);
  }

  void expect_text() {
    Request request;
    request.prompt = {TokenId(3), TokenId(4), TokenId(9)};
    request.max_tokens = 60;
    request.ignore_eos = true;
    const auto plain = toy_plain(request.prompt, request.max_tokens, 96, true);
    coordinator_->submit(std::move(request));
    const Status status = coordinator_->run();
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(error_.ok()) << error_.message();
    EXPECT_EQ(text_, plain);
  }

  RoleWorld world_;
  std::unique_ptr<Coordinator> coordinator_;
  bool one_process_ = false;
  int slow_plans_ = 0;  // number of coming plans that pause the whole process
  Clock::duration pause_{};

 private:
  void others() {
    if (world_.now >= target_begins_) serve_target();
    if (world_.now >= worker_begins_) serve_worker();
  }
  void serve_target() {
    if (!target_) {
      target_.emplace(512, 256);
      (void)target_end_.send(kCoordinatorPeer, Hello{.role = Role::kTarget,
                                                     .generation = Generation(1),
                                                     .model = info(7),
                                                     .max_sequences = 4,
                                                     .kv_blocks = 256});
    }
    while (const auto incoming = target_end_.receive({})) {
      const auto* plan = std::get_if<StepPlan>(&incoming->message);
      if (!plan) continue;
      results_.push_back(target_->handle(*plan));
      if (slow_plans_ > 0 && --slow_plans_ == 0) {  // stopped before the result was sent
        world_.now += pause_;
        return;
      }
    }
    for (; !results_.empty(); results_.pop_front())
      (void)target_end_.send(kCoordinatorPeer, results_.front());
  }
  void serve_worker() {
    if (!worker_) {
      drafter_ = make_ngram_drafter({.max_sequences = 4, .max_context = 96});
      worker_.emplace(*drafter_, worker_end_,
                      DraftWorkerOptions{.info = info(0),
                                         .generation = Generation(2),
                                         .join_timeout = 600s,
                                         .clock = [this] { return world_.now; }});
      ASSERT_TRUE(worker_->begin_to_join().ok());
    }
    EXPECT_TRUE(worker_->turn()) << worker_->end().message();
  }

  ToyTokenizer tokenizer_;
  Clock::time_point target_begins_, worker_begins_;
  RoleEnd target_end_{world_, kTarget}, worker_end_{world_, kWorker};
  std::optional<ToyTarget> target_;
  std::deque<StepResult> results_;
  std::unique_ptr<Drafter> drafter_;
  std::optional<DraftWorker> worker_;
  std::vector<TokenId> text_;
  Status error_;
};

TEST_F(LateRoles, TheTargetMayBeLateByFortySeconds) {
  begin(40s, 0s, 0s);
  const Status ready = coordinator_->wait_for_peers(1, world_.now + 300s);
  ASSERT_TRUE(ready.ok()) << ready.message();
  EXPECT_EQ(coordinator_->totals().workers_joined, 1);
  expect_text();
}

TEST_F(LateRoles, TheDrafterMayBeLate) {
  begin(0s, 40s, 0s);
  ASSERT_TRUE(coordinator_->wait_for_peers(1, world_.now + 300s).ok());
  expect_text();
}

TEST_F(LateRoles, TheCoordinatorMayBeLate) {
  begin(0s, 0s, 40s);
  ASSERT_TRUE(coordinator_->wait_for_peers(1, world_.now + 300s).ok());
  expect_text();
}

TEST_F(LateRoles, WhoIsWaitedForIsTold) {
  begin(40s, 0s, 0s);
  EXPECT_FALSE(coordinator_->wait_for_peers(1, world_.now + 35s).ok());
  EXPECT_EQ(coordinator_->awaited(1), "the target group (1 draft worker is ready and waits for it)");
  EXPECT_TRUE(coordinator_->wait_for_peers(1, world_.now + 10s).ok());
  EXPECT_EQ(coordinator_->awaited(1), "");
}

TEST_F(LateRoles, InOneProcessModelsAreWaitedFor) {
  one_process_ = true;
  begin(40s, 60s, 0s);
  const Status late = coordinator_->wait_for_peers(1, world_.now + 35s);
  EXPECT_EQ(late.message(), "the target model and the draft model could not be loaded in time");
  (void)coordinator_->wait_for_peers(1, world_.now + 10s);
  EXPECT_EQ(coordinator_->awaited(1), "the draft model");
}

// A stopped process comes back behind every deadline, with the target's answer on its way.
TEST_F(LateRoles, APauseOfTheWholeProcessLosesNobody) {
  begin(0s, 0s, 0s);
  ASSERT_TRUE(coordinator_->wait_for_peers(1, world_.now + 300s).ok());
  slow_plans_ = 3;
  pause_ = 75s;
  expect_text();
  EXPECT_EQ(coordinator_->totals().workers_lost, 0);
}

}  // namespace
}  // namespace outrider
