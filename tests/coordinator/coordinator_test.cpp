// The loop on the in-process transport, with the toy target and toy workers on threads of their own.
#include "coordinator/coordinator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "coordinator/gamma/policies.h"
#include "coordinator/probe_pause.h"
#include "text/tokenizer/vocabulary.h"
#include "toy_model.h"
#include "toy_target.h"
#include "toy_tokenizer.h"
#include "toy_worker.h"

namespace outrider {
namespace {

using std::chrono::milliseconds;

ModelInfo toy_model_info(uint64_t fingerprint = 7, int32_t vocabulary = kToyVocab) {
  return {.name = "toy",
          .vocab_size = vocabulary,
          .vocabulary_fingerprint = fingerprint,
          .max_context = 96,
          .isa = ""};
}

// A Shutdown message ends a thread. A thread also ends by itself when its peer is gone, or after a deadline,
// so no test can hang.
class CoordinatorLoop : public ::testing::Test {
 protected:
  CoordinatorLoop() : hub_(make_inproc_hub()) {
    options_.eos_ids = {kToyEos};
    options_.target_join_timeout = milliseconds(20'000);
  }
  ~CoordinatorLoop() override {
    if (coordinator_) coordinator_->shutdown();
    coordinator_.reset();  // a thread that starts late finds no coordinator
    for (std::thread& thread : threads_) thread.join();
  }

  void start(
      CoordinatorCallbacks callbacks = {}, Trace* trace = nullptr, GammaPolicyFactory gamma = [] {
        return make_heuristic_gamma({.start = 3, .min = 1, .max = 6, .guard = false});
      }) {
    if (!callbacks.on_emit) {
      callbacks.on_emit = [this](const Emit& emit) {
        auto& ids = ids_[emit.request];
        ids.insert(ids.end(), emit.ids.begin(), emit.ids.end());
      };
    }
    if (!callbacks.on_finish)
      callbacks.on_finish = [this](const Finish& finish) { finishes_.push_back(finish); };
    coordinator_ = std::make_unique<Coordinator>(hub_->coordinator_end(), options_, std::move(gamma),
                                                 &tokenizer_, std::move(callbacks), trace);
  }

  static constexpr int64_t kBlocks = 256;  // of the target's cache

  void add_target(int fail_at_step = -1) {
    threads_.emplace_back([this, end = hub_->connect(), rows = options_.max_rows_per_step, fail_at_step] {
      ToyTarget target(rows, kBlocks);
      const Hello hello{.role = Role::kTarget,
                        .generation = Generation(1),
                        .model = toy_model_info(7, vocabulary_),
                        .max_sequences = 32,
                        .kv_blocks = kBlocks};
      if (!end->send(kCoordinatorPeer, hello).ok()) return;
      while (auto incoming = end->receive(Clock::now() + std::chrono::seconds(20))) {
        if (std::holds_alternative<Shutdown>(incoming->message)) return;
        const auto* plan = std::get_if<StepPlan>(&incoming->message);
        if (!plan) continue;
        if (static_cast<int>(plan->step) == fail_at_step) {
          ASSERT_TRUE(end->send(kCoordinatorPeer, Failure{"asked to fail"}).ok());
          return;
        }
        const StepResult result = target.handle(*plan);
        ASSERT_EQ(target.error(), "");
        if (!end->send(kCoordinatorPeer, result).ok()) return;
      }
    });
  }

  // After `drafts` drafts its end is destroyed without a word.
  void add_worker(int drafts = 1'000'000, uint64_t fingerprint = 7, std::vector<uint64_t> beginnings = {}) {
    threads_.emplace_back([this, end = hub_->connect(), drafts, fingerprint, beginnings]() mutable {
      std::mt19937_64 random(11);
      ToyWorker worker(0.8, &random, vocabulary_);
      const Hello hello{.role = Role::kDraft,
                        .generation = Generation(2),
                        .model = toy_model_info(fingerprint, vocabulary_),
                        .vocabulary_beginnings = beginnings,
                        .max_sequences = 32};
      if (!end->send(kCoordinatorPeer, hello).ok()) return;
      while (auto incoming = end->receive(Clock::now() + std::chrono::seconds(20))) {
        if (std::holds_alternative<Shutdown>(incoming->message)) return;
        if (const auto* welcome = std::get_if<Welcome>(&incoming->message); welcome && !welcome->accepted)
          ++refused_;
        for (const Message& reply : worker.handle(incoming->message)) {
          if (drafts-- == 0) return;
          (void)end->send(kCoordinatorPeer, reply);
        }
      }
    });
  }

  static Request request(int32_t first, int32_t max_tokens = 40) {
    Request made;
    made.prompt = {TokenId(first), TokenId(4), TokenId(9)};
    made.max_tokens = max_tokens;
    made.ignore_eos = true;
    return made;
  }
  static std::vector<TokenId> plain(int32_t first, int32_t max_tokens = 40) {
    return toy_plain(request(first).prompt, max_tokens, 96, true);
  }

  std::shared_ptr<InprocHub> hub_;
  ProtocolOptions options_;
  int32_t vocabulary_ = kToyVocab;
  ToyTokenizer tokenizer_;
  std::unique_ptr<Coordinator> coordinator_;
  std::vector<std::thread> threads_;
  std::map<SequenceId, std::vector<TokenId>> ids_;
  std::vector<Finish> finishes_;
  std::atomic<int> refused_ = 0;
};

TEST_F(CoordinatorLoop, SpeculativeOutputIsPlainOutput) {
  Trace trace;
  start({}, &trace);
  add_target();
  add_worker();
  ASSERT_TRUE(coordinator_->wait_for_peers(1, Clock::now() + std::chrono::seconds(20)).ok());
  std::vector<SequenceId> requests;
  for (int32_t i = 0; i < 6; ++i) requests.push_back(coordinator_->submit(request(i + 1)));
  ASSERT_TRUE(coordinator_->run().ok());
  for (int32_t i = 0; i < 6; ++i) EXPECT_EQ(ids_[requests[static_cast<size_t>(i)]], plain(i + 1));
  EXPECT_GT(coordinator_->totals().rounds.accepted, 50);
  nlohmann::json report;
  coordinator_->fill_report(report);
  EXPECT_EQ(report["rounds"]["emitted_tokens"], 240);
  EXPECT_GT(report["wire"]["kinds"]["draft"]["received_bytes"], 0);
  EXPECT_GT(trace.rounds().size(), 10u);
}

TEST_F(CoordinatorLoop, AWorkerThatVanishesChangesNothing) {
  options_.first_draft_timeout = milliseconds(200);
  options_.draft_timeout_min = milliseconds(100);
  start();
  add_target();
  add_worker(5);
  ASSERT_TRUE(coordinator_->wait_for_peers(1, Clock::now() + std::chrono::seconds(20)).ok());
  const SequenceId a = coordinator_->submit(request(1)), b = coordinator_->submit(request(2));
  ASSERT_TRUE(coordinator_->run().ok());
  EXPECT_EQ(ids_[a], plain(1));
  EXPECT_EQ(ids_[b], plain(2));
  EXPECT_EQ(coordinator_->totals().workers_lost + coordinator_->totals().draft_deadlines_missed > 0, true);
}

// Dense rows of q for 16 tokens of a vocabulary of 128k are 4 MiB a sequence, and a frame holds 64 MiB. The
// coordinator splits the plan of a large batch, and no request fails.
TEST_F(CoordinatorLoop, DraftsThatDoNotFitOneFrameGoInSeveralPlans) {
  constexpr int32_t kVocabulary = 131'072, kGamma = 16, kSequences = 28;
  options_.q_kind = QKind::kDense;
  options_.max_num_seqs = kSequences;
  options_.gamma_max = kGamma;
  options_.draft_timeout_min = milliseconds(20'000);  // all drafts of a round wait for each other
  vocabulary_ = kVocabulary;
  start({}, nullptr, [] { return make_fixed_gamma(kGamma); });
  add_target();
  add_worker();
  ASSERT_TRUE(coordinator_->wait_for_peers(1, Clock::now() + std::chrono::seconds(20)).ok());
  std::vector<SequenceId> requests;
  for (int32_t i = 0; i < kSequences; ++i) {
    Request asked = request(i + 1, kGamma + 2);
    asked.sampling.rule = Rule::kToken;
    asked.sampling.temperature = 1;
    requests.push_back(coordinator_->submit(asked));
  }
  EXPECT_TRUE(coordinator_->run().ok());
  for (int32_t i = 0; i < kSequences; ++i)
    EXPECT_EQ(ids_[requests[static_cast<size_t>(i)]], plain(i + 1, kGamma + 2));
  EXPECT_GE(coordinator_->totals().drafts_used, kSequences);
}

// A request that no message can carry is refused; the others go on.
TEST_F(CoordinatorLoop, ARequestThatCannotBeSentEndsAlone) {
  start();
  add_target();
  ASSERT_TRUE(coordinator_->wait_for_peers(0, Clock::now() + std::chrono::seconds(20)).ok());
  Request unsendable = request(1);
  unsendable.sampling.temperature = std::numeric_limits<float>::quiet_NaN();
  const SequenceId bad = coordinator_->submit(unsendable), good = coordinator_->submit(request(2));
  EXPECT_TRUE(coordinator_->run().ok());
  EXPECT_EQ(ids_[good], plain(2));
  EXPECT_TRUE(ids_[bad].empty());
  ASSERT_EQ(finishes_.size(), 2u);
  EXPECT_EQ(finishes_[0].request, bad);
  EXPECT_EQ(finishes_[0].error.code(), StatusCode::kInvalidArgument);
}

TEST_F(CoordinatorLoop, AFailingTargetEndsEveryRequestWithAnError) {
  start();
  add_target(4);
  add_worker();
  for (int32_t i = 0; i < 3; ++i) coordinator_->submit(request(i + 1));
  const Status status = coordinator_->run();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("asked to fail"), std::string::npos);
  ASSERT_EQ(finishes_.size(), 3u);
  for (const Finish& finish : finishes_) EXPECT_EQ(finish.reason, FinishReason::kError);
  for (const auto& [id, ids] : ids_) {
    const auto expected = plain(static_cast<int32_t>(id.value()));
    EXPECT_TRUE(std::equal(ids.begin(), ids.end(), expected.begin()));
  }
}

TEST_F(CoordinatorLoop, ATargetThatVanishedIsFoundByAProbe) {
  start();
  auto target = hub_->connect();
  ASSERT_TRUE(target->send(kCoordinatorPeer, Hello{.role = Role::kTarget, .model = toy_model_info()}).ok());
  ASSERT_TRUE(coordinator_->wait_for_peers(0, Clock::now() + std::chrono::seconds(20)).ok());
  coordinator_->submit(request(1));
  coordinator_->probe_target();
  EXPECT_TRUE(finishes_.empty());
  target.reset();  // with the plan
  coordinator_->probe_target();
  ASSERT_EQ(finishes_.size(), 1u);
  EXPECT_EQ(finishes_[0].error.code(), StatusCode::kUnavailable);
  EXPECT_EQ(coordinator_->protocol().target_status().code(), StatusCode::kUnavailable);
  coordinator_->probe_target();  // of nobody
}

TEST(ProbePause, FindsADeathSoonAndNeverFillsAQueue) {
  using std::chrono::microseconds;
  microseconds at{0}, pause = kFirstProbePause;
  size_t asked = 0;
  for (; at < std::chrono::minutes(30); pause = next_probe_pause(pause), ++asked) {
    if (at < std::chrono::seconds(10)) {
      EXPECT_LT(pause, std::chrono::seconds(2));
    }
    at += pause;
  }
  EXPECT_LT(asked, InprocOptions{}.high_water_mark);
}

// A server's requests are without end.
TEST_F(CoordinatorLoop, NothingStaysOfRequestsThatFinished) {
  start();
  add_target();
  add_worker();
  ASSERT_TRUE(coordinator_->wait_for_peers(1, Clock::now() + std::chrono::seconds(20)).ok());
  std::vector<SequenceId> ids;
  for (int32_t i = 0; i < 100; ++i) {
    ids.push_back(coordinator_->submit(request(1 + i % 7, 1 + i % 5)));
    if (i % 3 == 0) coordinator_->cancel(ids.back());
    if (i % 10 == 9) {
      ASSERT_TRUE(coordinator_->run().ok());
    }
  }
  const auto stays = [&](SequenceId id) { return coordinator_->protocol().find(id) != nullptr; };
  const auto end = Clock::now() + std::chrono::seconds(20);
  while (std::any_of(ids.begin(), ids.end(), stays) && Clock::now() < end)
    coordinator_->poll(Clock::now() + milliseconds(1));  // Shutdown messages close the last ones
  EXPECT_TRUE(std::none_of(ids.begin(), ids.end(), stays));
  EXPECT_EQ(coordinator_->protocol().open_requests(), 0u);
  EXPECT_EQ(coordinator_->protocol().running_requests(), 0u);
  EXPECT_EQ(coordinator_->protocol().queued_tokens(), 0);
}

// A transport on which a draft worker that has just connected sends its Hello after every known peer received
// Shutdown.
class LastVisitor final : public Transport {
 public:
  explicit LastVisitor(std::vector<PeerId>& told) : told_(told) {}
  Status send(PeerId to, const Message& message) override {
    if (std::holds_alternative<Shutdown>(message)) told_.push_back(to);
    return {};
  }
  std::optional<Incoming> receive(Clock::time_point) override {
    constexpr int kVisit = 2;
    if (++calls_ != kVisit) return std::nullopt;
    return Incoming{PeerId{7}, Hello{.role = Role::kDraft, .generation = {}, .model = toy_model_info()}};
  }
  const TransportStats& stats() const override { return stats_; }

 private:
  std::vector<PeerId>& told_;
  int calls_ = 0;
  TransportStats stats_;
};

TEST(CoordinatorShutdown, WhoSaysHelloAtTheLastMomentIsToldToGo) {
  std::vector<PeerId> told;
  Coordinator(std::make_unique<LastVisitor>(told), {}, [] { return make_fixed_gamma(1); }, nullptr, {})
      .shutdown();
  EXPECT_EQ(told, std::vector<PeerId>{PeerId{7}});
}

TEST_F(CoordinatorLoop, WithoutATargetTheWaitIsBounded) {
  options_.target_join_timeout = milliseconds(50);
  start();
  coordinator_->submit(request(1));
  EXPECT_EQ(coordinator_->run().code(), StatusCode::kDeadlineExceeded);
  ASSERT_EQ(finishes_.size(), 1u);
  EXPECT_EQ(finishes_[0].error.code(), StatusCode::kDeadlineExceeded);
}

TEST_F(CoordinatorLoop, AForeignVocabularyIsRefused) {
  start();
  add_target();
  add_worker(0, 8);
  for (const auto end = Clock::now() + std::chrono::seconds(20); refused_ == 0 && Clock::now() < end;)
    EXPECT_EQ(coordinator_->wait_for_peers(1, Clock::now() + milliseconds(50)).code(),
              StatusCode::kDeadlineExceeded);
  EXPECT_EQ(coordinator_->totals().hellos_refused, 1);
  const SequenceId id = coordinator_->submit(request(1));
  ASSERT_TRUE(coordinator_->run().ok());
  EXPECT_EQ(ids_[id], plain(1));
}

// A draft model may lack the target's last tokens.
TEST_F(CoordinatorLoop, TheBeginningOfTheVocabularyIsEnough) {
  uint64_t beginning = 0;
  for (int32_t id = 0; id < kToyVocab / 2; ++id)
    beginning = extend_vocabulary_hash(beginning, TokenId(id), tokenizer_.token(TokenId(id)));
  start();
  add_target();
  add_worker(1'000'000, beginning);
  ASSERT_TRUE(coordinator_->wait_for_peers(1, Clock::now() + std::chrono::seconds(20)).ok());
  const SequenceId id = coordinator_->submit(request(1));
  ASSERT_TRUE(coordinator_->run().ok());
  EXPECT_EQ(ids_[id], plain(1));
}

// And a draft model may have tokens that the target lacks.
TEST_F(CoordinatorLoop, TokensBeyondTheVocabularyOfTheTargetDoNotMatter) {
  start();
  add_target();
  add_worker(1'000'000, 8, {5, 7});
  ASSERT_TRUE(coordinator_->wait_for_peers(1, Clock::now() + std::chrono::seconds(20)).ok());
  EXPECT_EQ(coordinator_->totals().hellos_refused, 0);
  const SequenceId id = coordinator_->submit(request(1));
  ASSERT_TRUE(coordinator_->run().ok());
  EXPECT_EQ(ids_[id], plain(1));
}

// What a JSONL run does: the next line is submitted when one finishes.
TEST_F(CoordinatorLoop, CallbacksMaySubmitAndCancel) {
  int left = 5;
  std::map<FinishReason, int> reasons;
  CoordinatorCallbacks callbacks;
  callbacks.on_finish = [&](const Finish& finish) {
    ++reasons[finish.reason];
    if (left-- > 0) coordinator_->submit(request(left + 1));
  };
  callbacks.on_emit = [&](const Emit& emit) {
    if (emit.request.value() == 2) coordinator_->cancel(emit.request);
  };
  start(std::move(callbacks));
  add_target();
  coordinator_->submit(request(9));
  ASSERT_TRUE(coordinator_->run().ok());
  EXPECT_EQ(reasons[FinishReason::kLength], 5);
  EXPECT_EQ(reasons[FinishReason::kCancelled], 1);
}

}  // namespace
}  // namespace outrider
