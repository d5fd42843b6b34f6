// Thousands of seeded fault schedules against the production protocol machine. Oracle: plain decoding of the
// toy model.
#include <gtest/gtest.h>

#include "cluster/acceptance_process.h"
#include "coordinator/gamma/policies.h"
#include "simulated_schedules.h"

namespace outrider {
namespace {

using namespace schedules;  // NOLINT: the names of these tests

// Plain rounds with probe drafts, and what was learnt from these.
class ProbeDraftsOnly final : public GammaPolicy {
 public:
  struct Learnt {
    int32_t drafted = 0, accepted = 0;
  };
  explicit ProbeDraftsOnly(Learnt* learnt) : learnt_(learnt) {}
  int32_t next(const GammaContext&) override { return 0; }
  void update(const RoundOutcome&) override {}
  int32_t probe_draft() const override { return 2; }
  void observe_probe_draft(int32_t drafted, int32_t accepted) override {
    learnt_->drafted += drafted;
    learnt_->accepted += accepted;
  }

 private:
  Learnt* learnt_;
};

TEST_F(ProtocolSimulation, WithoutFaultsNothingIsDropped) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed) run(seed, {});
  EXPECT_GT(accepted_, 1000);
  EXPECT_GT(hits_, 1000);
  EXPECT_GT(misses_, 1000);
  EXPECT_GT(prefix_hits_, 5000);
  EXPECT_EQ(dropped_unprobed_, 0);
  EXPECT_GT(dropped_[static_cast<size_t>(DropReason::kProbeDraft)], 1000);
}

TEST_F(ProtocolSimulation, LossDuplicationAndReordering) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run(seed, {.drop = 0.2, .duplicate = 0.3, .max_delay_us = 30'000, .reorder = true});
  EXPECT_GT(struck_.drop, 10'000);
  EXPECT_GT(struck_.duplicate, 10'000);
  EXPECT_GT(accepted_, 1000);
  EXPECT_GT(dropped_[static_cast<size_t>(DropReason::kStaleRound)], 0);
  EXPECT_GT(dropped_[static_cast<size_t>(DropReason::kStaleEpoch)], 0);
  EXPECT_GT(dropped_[static_cast<size_t>(DropReason::kDuplicate)], 0);
}

TEST_F(ProtocolSimulation, CorruptFields) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed) run(seed, {.corrupt = 0.4});
  EXPECT_GT(struck_.corrupt, 1000);
  for (const DropReason reason :
       {DropReason::kWrongBase, DropReason::kWrongHash, DropReason::kTooLong, DropReason::kBadIds,
        DropReason::kBadQ, DropReason::kTree, DropReason::kUnknownSequence, DropReason::kUnexpectedSender})
    EXPECT_GT(dropped_[static_cast<size_t>(reason)], 0) << kDropReasonNames[static_cast<size_t>(reason)];
}

TEST_F(ProtocolSimulation, WorkersDieAndComeBack) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run(seed, {.worker_death = 0.1, .silent_death = seed % 2 == 0});
  EXPECT_GT(struck_.worker_death, 500);
  EXPECT_GT(accepted_, 1000);
  EXPECT_GT(hits_, 300);
}

TEST_F(ProtocolSimulation, FullQueues) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed) run(seed, {.refuse_send = 0.2});
  EXPECT_GT(struck_.refuse_send, 1000);
  EXPECT_GT(accepted_, 500);
}

TEST_F(ProtocolSimulation, CancelledRequests) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed) run(seed, {.cancel = 0.1});
  EXPECT_GT(struck_.cancel, 500);
  EXPECT_GT(finished(FinishReason::kCancelled), struck_.cancel / 2);  // others end while it is on its way
  EXPECT_GT(finished(FinishReason::kLength), 100);
  EXPECT_EQ(finished(FinishReason::kError), 0);
}

TEST_F(ProtocolSimulation, TargetFailuresAreLoud) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed) run(seed, {.target_failure = 0.03});
  EXPECT_GT(struck_.target_failure, 200);
  EXPECT_GT(finished(FinishReason::kError), struck_.target_failure);  // of one or more requests each
  EXPECT_GT(finished(FinishReason::kLength), 100);
}

TEST_F(ProtocolSimulation, EverythingAtOnce) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed) run(seed, everything(seed, 0.002));
  EXPECT_GT(accepted_, 500);
  for (const int64_t count : {struck_.drop, struck_.duplicate, struck_.corrupt, struck_.refuse_send,
                              struck_.worker_death, struck_.target_failure, struck_.cancel})
    EXPECT_GT(count, 10);
  for (const int64_t count : finished_) EXPECT_GT(count, 10);
}

// The KV cache holds little more than the longest text. A preempted sequence continues with exactly the same
// text, and every sequence finishes.
TEST_F(ProtocolSimulation, MemoryByNeed) {
  for (uint64_t seed = 0; seed < 2 * kSchedules && !HasFailure(); ++seed) {
    Schedule schedule = seed % 2 == 0 ? random_schedule(seed) : random_slices(seed);
    schedule.kv_blocks = 6 + static_cast<int64_t>(seed % 6);
    const bool faulty = seed % 3 == 0;
    run(seed,
        faulty ? Faults{.drop = 0.05, .worker_death = 0.03, .nonfinite = 0.01, .cancel = 0.02} : Faults{},
        schedule);
  }
  EXPECT_GT(preemptions_, 200);
  EXPECT_GT(prefix_hits_, 5000);
  EXPECT_GT(accepted_, 1000);
}

// A random schedule over two or three target groups.
Schedule random_groups(uint64_t seed) {
  Schedule schedule = random_schedule(seed);
  std::mt19937_64 random(seed * 3 + 11);
  schedule.options.target_groups = pick(random, 2, 3);
  schedule.options.max_num_seqs = pick(random, 1, 3);
  if (pick(random, 0, 2) == 0) schedule.options.q_kind = QKind::kDense;
  if (pick(random, 0, 2) == 0) schedule.kv_blocks = 6 + static_cast<int64_t>(seed % 6);
  while (schedule.requests.size() < 6) {
    schedule.requests.push_back(
        schedule.requests[static_cast<size_t>(pick(random, 0, 9)) % schedule.requests.size()]);
    schedule.requests.back().submit_at_us = pick(random, 0, 5000);
  }
  return schedule;
}

// The same with one or two groups that only prefill, and at least one that decodes.
Schedule random_prefill_groups(uint64_t seed) {
  Schedule schedule = random_groups(seed);
  std::mt19937_64 random(seed * 5 + 3);
  ProtocolOptions& options = schedule.options;
  options.prefill_groups = pick(random, 1, 2);
  options.target_groups = options.prefill_groups + pick(random, 1, 2);
  options.min_handoff_tokens = pick(random, 1, 33);
  options.handoff_timeout = std::chrono::milliseconds(pick(random, 2, 20));
  if (schedule.kv_blocks > 0) schedule.kv_blocks += 2;
  for (SimulatedRequest& simulated : schedule.requests) {  // longer prompts, some of which begin alike
    auto& prompt = simulated.request.prompt;
    const auto more = static_cast<size_t>(pick(random, 0, 60));
    const int step = pick(random, 1, 3);
    for (size_t i = 0; i < more && prompt.size() < 70; ++i)
      prompt.insert(prompt.begin(), TokenId(1 + (static_cast<int32_t>(i) * step) % (kToyVocab - 1)));
  }
  return schedule;
}

// Most prompts are prefilled in one group and decoded in another; texts are those of plain decoding.
TEST_F(ProtocolSimulation, GroupsThatOnlyPrefill) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run(seed, {}, random_prefill_groups(seed));
  EXPECT_GT(handoffs_, 1000);
  EXPECT_GT(accepted_, 1000);
  EXPECT_GT(preemptions_, 20);
}

// Prefill groups hang for a while. Their prompts go on in groups that decode. When a prefill group answers,
// it closes the sequences of the prompts that left.
TEST_F(ProtocolSimulation, PromptsLeavePrefillGroupsThatHang) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed) {
    Faults faults{.target_failure = seed % 2 == 0 ? 0.001 : 0.0};
    faults.target_return = 0.7;
    faults.stall = 0.1;
    faults.cancel = 0.01;
    run(seed, faults, random_prefill_groups(seed));
  }
  EXPECT_GT(handoffs_, 500);
  EXPECT_GT(handoffs_lost_, 300);
  EXPECT_GT(struck_.stall, 300);
}

// Blocks that are lost, groups of both kinds that die and return, requests that are cancelled on their way.
TEST_F(ProtocolSimulation, PromptsThatAreHandedOverSurviveFaults) {
  for (uint64_t seed = 0; seed < 2 * kSchedules && !HasFailure(); ++seed) {
    Faults faults = seed % 3 == 0 ? everything(seed, 0.003, 0.7) : Faults{.target_failure = 0.003};
    faults.lose_blocks = seed % 2 == 0 ? 0.3 : 0.0;
    faults.cancel = 0.01;
    run(seed, faults, random_prefill_groups(seed));
  }
  EXPECT_GT(handoffs_, 1000);
  EXPECT_GT(handoffs_lost_, 300);
  EXPECT_GT(struck_.lose_blocks, 300);
  EXPECT_GT(struck_.target_failure, 300);
  EXPECT_GT(failovers_, 100);
}

TEST_F(ProtocolSimulation, SeveralTargetGroups) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed) run(seed, {}, random_groups(seed));
  EXPECT_GT(accepted_, 1000);
  EXPECT_GT(hits_, 1000);
  EXPECT_GT(prefix_hits_, 3000);
  EXPECT_GT(preemptions_, 50);
  EXPECT_GT(groups_used_[1], 4 * groups_used_[0]);
  EXPECT_EQ(failovers_, 0);
  EXPECT_EQ(dropped_unprobed_, 0);
}

// Texts go on in another group with their very bytes, and end with an error only when all were gone at once.
TEST_F(ProtocolSimulation, TargetGroupsThatDie) {
  for (uint64_t seed = 0; seed < 2 * kSchedules && !HasFailure(); ++seed)
    run(seed, {.target_failure = 0.003}, random_groups(seed));
  EXPECT_GT(struck_.target_failure, 300);
  EXPECT_GT(failovers_, 300);
  EXPECT_GT(accepted_, 1000);
  EXPECT_GT(finished(FinishReason::kLength), 20 * finished(FinishReason::kError));
}

TEST_F(ProtocolSimulation, TargetGroupsThatDieAndComeBack) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run(seed, {.target_failure = 0.03, .target_return = 0.9}, random_groups(seed));
  EXPECT_GT(struck_.target_failure, 500);
  EXPECT_GT(failovers_, 500);
  EXPECT_GT(finished(FinishReason::kLength), 3 * finished(FinishReason::kError));
}

TEST_F(ProtocolSimulation, EverythingAtOnceInSeveralTargetGroups) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run(seed, everything(seed, 0.01, 0.7), random_groups(seed));
  EXPECT_GT(accepted_, 500);
  EXPECT_GT(failovers_, 100);
  for (const int64_t count : finished_) EXPECT_GT(count, 10);
}

// Under rules that wait for a draft whatever it costs, a worker that is there and never drafts is given up
// soon, and asked ever more rarely.
TEST(Mute, AWorkerThatOnlySaysThatItIsThereCostsSeconds) {
  for (const Rule rule : {Rule::kToken, Rule::kBlock}) {
    ProtocolOptions options;
    options.max_num_seqs = 2;
    Faults faults{.max_delay_us = 40'000, .mute = true};
    SimulatedCluster cluster(
        1, options, [] { return make_fixed_gamma(4); }, faults, 1, 0.5);
    std::vector<SimulatedRequest> requests(9);
    for (size_t i = 0; i < requests.size(); ++i) {
      Request& request = requests[i].request;
      request.prompt = {TokenId(static_cast<int32_t>(i)), TokenId(2)};
      request.max_tokens = 60;
      request.ignore_eos = true;
      request.sampling.rule = rule;
      request.sampling.temperature = 0.5f;
    }
    ASSERT_TRUE(cluster.run(requests));
    for (const auto& [id, outcome] : cluster.outcomes())
      EXPECT_EQ(outcome.ids, plain(requests[id.value() - 1].request));
    EXPECT_GT(cluster.protocol().totals().liveness_timeouts, 0);
    EXPECT_LE(cluster.protocol().totals().liveness_timeouts, 4);
    EXPECT_LT(cluster.virtual_us(), 20'000'000);
  }
}

// With synthetic acceptance rounds accept what its process says, whatever the text, and so do probe drafts.
TEST(ProbeDrafts, TeachWhatRoundsWouldAccept) {
  for (const char* rates : {"", "rates:1", "rates:0"}) {
    SCOPED_TRACE(rates);
    ProbeDraftsOnly::Learnt learnt;
    ProtocolOptions options;
    if (*rates != '\0')
      options.synthetic_acceptance =
          std::make_shared<AcceptanceProcess>(AcceptanceProcess::parse(rates, 1).value());
    SimulatedCluster cluster(
        1, options, [&learnt] { return std::make_unique<ProbeDraftsOnly>(&learnt); }, Faults{}, 1, 0.5);
    SimulatedRequest simulated;
    simulated.request.prompt = {TokenId(1), TokenId(2)};
    simulated.request.max_tokens = 60;
    simulated.request.ignore_eos = true;
    simulated.request.sampling.rule = Rule::kGreedy;
    ASSERT_TRUE(cluster.run({simulated}));
    EXPECT_GT(learnt.drafted, 10);
    const double share = static_cast<double>(learnt.accepted) / learnt.drafted;
    if (*rates == '\0') {
      EXPECT_GT(share, 0);
      EXPECT_LT(share, 1);
    } else {
      EXPECT_EQ(share, rates == std::string("rates:1") ? 1 : 0);
    }
  }
}

}  // namespace
}  // namespace outrider
