// Thousands of seeded fault schedules against the production protocol machine. Oracle: plain decoding of the
// toy model.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "cluster/acceptance_process.h"
#include "coordinator/gamma/policies.h"
#include "simulated_cluster.h"
#include "toy_model.h"

namespace outrider {
namespace {

struct Schedule {
  ProtocolOptions options;
  GammaPolicyFactory gamma;
  std::vector<SimulatedRequest> requests;
  int workers = 1;
  double accuracy = 0.7;
  int64_t kv_blocks = 0;       // of the target; 0: enough for all
  int ranks = 0;               // that take slices of dense q; 0: the target has no endpoints for slices
  bool hidden_states = false;  // drafters need rows of the target's
  bool own = false;            // and the target drafts, too
  bool probe_drafts = false;   // drafts that rounds do not wait for, some of which come to nothing
};

// Rounds with and without drafts, and probe drafts beside rounds of both kinds.
class ProbingGamma final : public GammaPolicy {
 public:
  int32_t next(const GammaContext& context) override {
    EXPECT_NE(context.probe_drafts, ProbeDraftMode::kNone);
    return ++rounds_ % 5 == 0 ? 2 : 0;
  }
  void update(const RoundOutcome&) override {}
  int32_t probe_draft() const override { return rounds_ % 3; }
  void observe_probe_draft(int32_t drafted, int32_t accepted) override {
    EXPECT_LE(drafted, 2);
    EXPECT_LE(accepted, std::max(drafted, 2));
  }

 private:
  int32_t rounds_ = 0;
};

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

int32_t pick(std::mt19937_64& random, int32_t low, int32_t high) {
  return std::uniform_int_distribution<int32_t>(low, high)(random);
}

// Every second run drafts trees where its rules allow it.
TreeOptions random_tree(uint64_t seed) {
  std::mt19937_64 random(seed * 2 + 7);
  TreeOptions tree;
  const int32_t kind = pick(random, 0, 3);
  if (kind == 0)
    for (int32_t levels = pick(random, 1, 3); levels > 0; --levels)
      tree.shape.widths.push_back(pick(random, 1, 3));
  if (kind == 1) tree.shape.nodes = pick(random, 1, 12);
  return tree;
}

// Half of the requests begin as an earlier one does, or are the same; some are another user's.
void share_prompts(std::vector<SimulatedRequest>& requests, uint64_t seed) {
  std::mt19937_64 random(seed * 5);
  for (size_t i = 1; i < requests.size(); ++i) {
    if (pick(random, 0, 1) == 0) continue;
    Request& request = requests[i].request;
    const auto& other = requests[static_cast<size_t>(pick(random, 0, static_cast<int32_t>(i) - 1))].request;
    const auto common = std::min(request.prompt.size(), other.prompt.size());
    std::copy_n(other.prompt.begin(), common, request.prompt.begin());
    if (pick(random, 0, 2) == 0) request.prompt = other.prompt;
    if (pick(random, 0, 9) == 0) request.cache_salt = "another";
    if (pick(random, 0, 9) == 0) request.prompt_logprobs = 0;
    if (pick(random, 0, 3) == 0) requests[i].submit_at_us += 20'000;
  }
}

Schedule random_schedule(uint64_t seed) {
  std::mt19937_64 random(seed * 2 + 1);
  Schedule schedule;
  schedule.options.eos_ids = {kToyEos};
  schedule.options.max_num_seqs = pick(random, 1, 5);
  schedule.options.max_rows_per_step = pick(random, 8, 40);
  schedule.options.prefill_chunk = pick(random, 1, 12);
  schedule.options.gamma_max = pick(random, 0, 8);
  schedule.options.draft_timeout_min = std::chrono::milliseconds(pick(random, 1, 20));
  schedule.options.first_draft_timeout = std::chrono::milliseconds(pick(random, 1, 50));
  schedule.options.liveness_timeout = std::chrono::milliseconds(pick(random, 1, 100));
  schedule.options.max_back_off = std::chrono::milliseconds(pick(random, 1, 100));
  schedule.options.pipeline = static_cast<Pipeline>(pick(random, 0, 3));
  schedule.options.fanout = pick(random, 1, 8);
  const int32_t gamma = pick(random, 0, 8);
  schedule.gamma = [gamma]() -> std::unique_ptr<GammaPolicy> {
    if (gamma == 7) return std::make_unique<ProbingGamma>();
    return gamma == 6 ? make_heuristic_gamma({.start = 5, .min = 1, .max = 16, .guard = false})
                      : make_fixed_gamma(gamma);
  };
  schedule.probe_drafts = gamma >= 7;
  if (gamma == 8) schedule.gamma = parse_gamma_policy("ewma").value();
  schedule.options.tree = random_tree(seed);
  schedule.workers = pick(random, 0, 3);
  schedule.accuracy = pick(random, 0, 10) / 10.0;
  const int32_t count = pick(random, 1, 6);
  for (int32_t i = 0; i < count; ++i) {
    SimulatedRequest simulated;
    Request& request = simulated.request;
    for (int32_t n = pick(random, 1, 40); n > 0; --n)
      request.prompt.emplace_back(pick(random, 0, kToyVocab - 1));
    request.max_tokens = pick(random, 1, 60);
    request.ignore_eos = pick(random, 0, 1) == 1;
    request.sampling.rule = static_cast<Rule>(pick(random, 0, 4));
    request.sampling.temperature = request.sampling.rule == Rule::kGreedy ? 0.0f : 0.5f;
    request.sampling.seed = Seed{random()};
    simulated.submit_at_us = pick(random, 0, 3000);
    schedule.requests.push_back(std::move(simulated));
  }
  share_prompts(schedule.requests, seed);
  schedule.options.prefix_caching = seed % 4 != 0;
  return schedule;
}

// A random schedule with dense q in slices, which rules that draw by round send most of the time.
Schedule random_slices(uint64_t seed) {
  Schedule schedule = random_schedule(seed);
  std::mt19937_64 random(seed * 2);
  schedule.options.q_kind = QKind::kDense;
  schedule.options.gamma_max = pick(random, 1, 8);
  schedule.workers = pick(random, 1, 3);
  schedule.ranks = 1 << pick(random, 0, 3);
  for (SimulatedRequest& simulated : schedule.requests) {
    SamplingParams& sampling = simulated.request.sampling;
    if (pick(random, 0, 4) > 0) sampling.rule = pick(random, 0, 1) == 0 ? Rule::kToken : Rule::kBlock;
    if (sampling.rule != Rule::kGreedy) sampling.temperature = 0.5f;
  }
  return schedule;
}

std::vector<TokenId> plain(const Request& request) {
  return toy_plain(request.prompt, request.max_tokens, 96, request.ignore_eos);
}

class ProtocolSimulation : public ::testing::Test {
 protected:
  // Runs one schedule; whatever happened, nothing committed may differ from plain decoding.
  void run(uint64_t seed, const Faults& faults) { run(seed, faults, random_schedule(seed)); }
  void run_slices(uint64_t seed, const Faults& faults) { run(seed, faults, random_slices(seed)); }

  // With drafters that need rows of the target's hidden states.
  void run_states(uint64_t seed, const Faults& faults, int64_t kv_blocks = 0, int32_t groups = 1) {
    Schedule schedule = random_schedule(seed);
    schedule.options.target_groups = groups;
    schedule.hidden_states = true;
    schedule.workers = std::max(1, schedule.workers);
    schedule.kv_blocks = kv_blocks;
    run(seed, faults, schedule);
  }

  // With heads at the target and at workers.
  void run_places(uint64_t seed, const Faults& faults, int64_t kv_blocks = 0, int32_t groups = 1) {
    Schedule schedule = random_schedule(seed);
    schedule.options.target_groups = groups;
    schedule.hidden_states = schedule.own = true;
    if (std::exchange(schedule.probe_drafts, true) ||
        seed % 2 == 0)  // a policy that draws no probe drafts of its own
      schedule.gamma = parse_gamma_policy(seed % 4 == 0 ? "ewma" : "fixed:gamma=3").value();
    schedule.options.pipeline = Pipeline::kLockstep;
    schedule.options.max_num_seqs = 2;  // more rounds
    while (schedule.requests.size() < 12) {
      SimulatedRequest more = schedule.requests[schedule.requests.size() / 2];
      more.request.sampling.seed = Seed{seed + schedule.requests.size()};
      schedule.requests.push_back(std::move(more));
    }
    schedule.kv_blocks = kv_blocks;
    run(seed, faults, schedule);
  }

  void run(uint64_t seed, const Faults& faults, const Schedule& schedule) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SimulatedCluster cluster(seed, schedule.options, schedule.gamma, faults, schedule.workers,
                             schedule.accuracy, schedule.ranks, schedule.kv_blocks, schedule.hidden_states);
    if (schedule.own) cluster.draft_at_targets(0, static_cast<int64_t>(seed % 100));
    ASSERT_TRUE(cluster.run(schedule.requests))
        << "did not end; virtual time " << cluster.virtual_us() << " us";
    ASSERT_EQ(cluster.target_error(), "");
    ASSERT_EQ(cluster.worker_error(), "");
    ASSERT_EQ(cluster.ranks().error(), "");
    size_t emitted = 0;
    for (const auto& [id, outcome] : cluster.outcomes()) {
      check_outcome(schedule.requests[id.value() - 1].request, outcome, cluster.all_targets_failed());
      ++finished_[static_cast<size_t>(outcome.finish.reason)];
      emitted += outcome.ids.size();
    }
    check_totals(cluster, emitted);
    if (!cluster.target_failed()) {
      EXPECT_EQ(cluster.sequences_at_targets(), 0u);
    }
    const bool nothing_lost = faults.drop == 0 && faults.worker_death == 0 && faults.max_delay_us <= 200;
    if (nothing_lost && faults.duplicate == 0 && faults.refuse_send == 0) {
      EXPECT_EQ(cluster.sequences_at_workers(), 0u);
    }
    struck_ += cluster.struck();
    slices_struck_ += cluster.slices_struck();
    told_ += cluster.told();
    at_target_ += cluster.protocol().totals().head_rounds_at_target;
    at_worker_ += cluster.protocol().totals().head_rounds_at_worker;
    accepted_ += cluster.protocol().totals().rounds.accepted;
    hits_ += cluster.protocol().totals().preparation.hits;
    misses_ += cluster.protocol().totals().preparation.lookups - cluster.protocol().totals().preparation.hits;
    sliced_ += cluster.ranks().used();
    preemptions_ += cluster.protocol().totals().preemptions;
    prefix_hits_ += cluster.protocol().totals().prefix_hits;
    failovers_ += cluster.protocol().totals().failovers;
    // Texts that are recomputed after a failure count as no hits.
    EXPECT_LE(cluster.protocol().totals().prefix_hits,
              cluster.prefix_tokens() + 1000 * cluster.struck().target_failure);
    EXPECT_TRUE(schedule.options.prefix_caching || cluster.prefix_tokens() == 0);
    int64_t begun = 0;
    for (const GroupTotals& group : cluster.protocol().totals().groups) {
      begun += group.requests;
      ++groups_used_[group.requests > 0];
    }
    EXPECT_LE(begun, static_cast<int64_t>(schedule.requests.size()));
    const auto& dropped = cluster.protocol().totals().drafts_dropped;
    for (size_t i = 0; i < dropped_.size(); ++i) dropped_[i] += dropped[i];
    if (!schedule.probe_drafts)
      dropped_unprobed_ += std::accumulate(dropped.begin(), dropped.end(), int64_t{0});
  }

  static void check_outcome(const Request& request, const SimulatedOutcome& outcome, bool target_failed) {
    const size_t scored = request.prompt_logprobs < 0 ? 0 : request.prompt.size() - 1;
    EXPECT_LE(outcome.prompt_scores, scored);
    EXPECT_TRUE(outcome.ids.empty() || outcome.prompt_scores == scored);
    EXPECT_EQ(outcome.finishes, 1);
    const std::vector<TokenId> expected = plain(request);
    ASSERT_LE(outcome.ids.size(), expected.size());
    EXPECT_TRUE(std::equal(outcome.ids.begin(), outcome.ids.end(), expected.begin()))
        << "not a prefix of plain output";
    switch (outcome.finish.reason) {
      case FinishReason::kStop:
      case FinishReason::kLength: {
        EXPECT_EQ(outcome.ids.size(), expected.size());
        const bool eos = !request.ignore_eos && expected.back() == kToyEos;
        EXPECT_EQ(outcome.finish.reason, eos ? FinishReason::kStop : FinishReason::kLength);
        break;
      }
      case FinishReason::kCancelled:
        EXPECT_TRUE(outcome.cancel_sent);
        break;
      case FinishReason::kError:
        EXPECT_FALSE(outcome.finish.error.ok());
        EXPECT_TRUE(target_failed || outcome.finish.error.message().find("non-finite") != std::string::npos)
            << outcome.finish.error.message();
    }
  }

  static void check_totals(const SimulatedCluster& cluster, size_t emitted) {
    const Totals& totals = cluster.protocol().totals();
    const int64_t dropped =
        std::accumulate(totals.drafts_dropped.begin(), totals.drafts_dropped.end(), int64_t{0});
    EXPECT_EQ(totals.drafts_received, totals.drafts_used + dropped);
    EXPECT_EQ(totals.rounds.emitted, static_cast<int64_t>(emitted));
    EXPECT_EQ(totals.submitted, std::accumulate(totals.finished.begin(), totals.finished.end(), int64_t{0}));
    EXPECT_EQ(cluster.protocol().open_requests(), 0u);
  }

  int64_t finished(FinishReason reason) const { return finished_[static_cast<size_t>(reason)]; }
  int64_t dropped(DropReason reason) const { return dropped_[static_cast<size_t>(reason)]; }

  int64_t accepted_ = 0, hits_ = 0, misses_ = 0, dropped_unprobed_ = 0;
  int64_t sliced_ = 0;  // drafts that were verified by slices
  int64_t prefix_hits_ = 0, preemptions_ = 0, failovers_ = 0;
  std::array<int64_t, 2> groups_used_{};   // target groups, of all schedules: those nothing began in, others
  int64_t told_ = 0;                       // rows of hidden states
  int64_t at_target_ = 0, at_worker_ = 0;  // rounds by where a head drafts
  std::array<int64_t, kDropReasonNames.size()> dropped_{};
  std::array<int64_t, 4> finished_{};  // requests, by FinishReason
  FaultCounts struck_, slices_struck_;
};

constexpr uint64_t kSchedules = 700;  // per test

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

Faults everything(uint64_t seed, double target_failure, double target_return = 0) {
  return {.drop = 0.1,
          .duplicate = 0.1,
          .corrupt = 0.1,
          .refuse_send = 0.05,
          .max_delay_us = 5'000,
          .reorder = true,
          .worker_death = 0.03,
          .silent_death = seed % 2 == 0,
          .nonfinite = 0.01,
          .target_failure = target_failure,
          .target_return = target_return,
          .cancel = 0.02};
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

// Dense q in slices. In every schedule a draft is either verified with the distributions it was drawn from,
// in all slices, or dropped by all ranks.
TEST_F(ProtocolSimulation, SlicesWithoutFaultsAreAllUsed) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed) run_slices(seed, {});
  EXPECT_GT(accepted_, 1000);
  EXPECT_GT(hits_, 1000);
  EXPECT_GT(sliced_, 5000);
  EXPECT_EQ(dropped_unprobed_, 0);
}

TEST_F(ProtocolSimulation, SlicesThatAreLost) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run_slices(seed, {.slices = {.drop = 0.02}});
  EXPECT_GT(slices_struck_.drop, 300);
  EXPECT_GT(sliced_, 1000);
  EXPECT_GT(dropped(DropReason::kSliceMissing), 300);
}

TEST_F(ProtocolSimulation, SlicesOfOneRankThatAreLostOrLate) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run_slices(seed,
               {.slices = {.drop = 0.03, .max_delay_us = 12'000, .only_rank = static_cast<int>(seed % 2)}});
  EXPECT_GT(sliced_, 1000);
  EXPECT_GT(dropped(DropReason::kSliceMissing), 100);
}

// As long as none is lost and none too late, nothing is given up.
TEST_F(ProtocolSimulation, SlicesThatAreRepeatedAndReordered) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run_slices(seed, {.slices = {.duplicate = 0.5, .max_delay_us = 5'000, .reorder = true}});
  EXPECT_GT(slices_struck_.duplicate, 5000);
  EXPECT_GT(sliced_, 5000);
  EXPECT_EQ(dropped(DropReason::kSliceMissing), 0);
}

TEST_F(ProtocolSimulation, SlicesThatAreCorruptOrRefused) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run_slices(seed, {.slices = {.corrupt = 0.02, .refuse_send = 0.1}});
  EXPECT_GT(slices_struck_.corrupt, 300);
  EXPECT_GT(slices_struck_.refuse_send, 300);
  EXPECT_GT(sliced_, 1000);
  EXPECT_GT(dropped(DropReason::kSliceMissing), 100);
}

// Drafts that come too late leave slices behind, which must not pass for those of a later round.
TEST_F(ProtocolSimulation, SlicesOfStaleDrafts) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run_slices(seed, {.drop = 0.1,
                      .duplicate = 0.2,
                      .max_delay_us = 30'000,
                      .reorder = true,
                      .slices = {.max_delay_us = 9'000, .reorder = true}});
  EXPECT_GT(sliced_, 1000);
  EXPECT_GT(dropped(DropReason::kStaleRound), 100);
}

TEST_F(ProtocolSimulation, SlicesAndEverythingAtOnce) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run_slices(seed, {.drop = 0.05,
                      .duplicate = 0.1,
                      .corrupt = 0.05,
                      .refuse_send = 0.05,
                      .max_delay_us = 5'000,
                      .reorder = true,
                      .worker_death = 0.05,
                      .silent_death = seed % 2 == 0,
                      .nonfinite = 0.01,
                      .target_failure = 0.002,
                      .cancel = 0.02,
                      .slices = {.drop = 0.02,
                                 .duplicate = 0.1,
                                 .corrupt = 0.02,
                                 .refuse_send = 0.02,
                                 .max_delay_us = 8'000,
                                 .reorder = true}});
  EXPECT_GT(sliced_, 1000);
  EXPECT_GT(dropped(DropReason::kSliceMissing), 100);
}

// Drafters that need hidden states of the target: every row belongs to its text, and lost rows are sent
// again.
TEST_F(ProtocolSimulation, RowsOfStatesWithoutFaults) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed) run_states(seed, {});
  EXPECT_GT(accepted_, 1000);
  EXPECT_GT(told_, 10'000);
  // A round whose rows are on their way when it is asked once more is drafted for twice.
  EXPECT_LT(dropped_unprobed_, accepted_ / 100);
  for (const DropReason reason : {DropReason::kWrongBase, DropReason::kWrongHash, DropReason::kBadIds})
    EXPECT_EQ(dropped(reason), 0);
}

TEST_F(ProtocolSimulation, RowsOfStatesThatAreLostLateOrTwice) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run_states(seed, {.drop = 0.2, .duplicate = 0.3, .max_delay_us = 30'000, .reorder = true});
  EXPECT_GT(accepted_, 500);
}

TEST_F(ProtocolSimulation, RowsOfStatesForWorkersThatDie) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run_states(seed, {.worker_death = 0.1, .silent_death = seed % 2 == 0});
  EXPECT_GT(struck_.worker_death, 500);
  EXPECT_GT(accepted_, 1000);
}

TEST_F(ProtocolSimulation, RowsOfStatesThroughFullQueuesAndALittleMemory) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run_states(seed, {.refuse_send = 0.1}, 6 + static_cast<int64_t>(seed % 6));
  EXPECT_GT(struck_.refuse_send, 500);
  EXPECT_GT(preemptions_, 100);
  EXPECT_GT(accepted_, 300);
}

TEST_F(ProtocolSimulation, RowsOfStatesWithEverythingAtOnce) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run_states(seed, everything(seed, 0.002), 0, 1 + static_cast<int32_t>(seed % 2));
  EXPECT_GT(accepted_, 200);
}

// Rows of a text are the same in every group, so a worker goes on with those that it has.
TEST_F(ProtocolSimulation, RowsOfStatesOfGroupsThatDie) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run_states(seed, {.target_failure = 0.02}, 0, 3);
  EXPECT_GT(failovers_, 100);
  EXPECT_GT(accepted_, 1000);
}

// ---- a head in both places ------------------------------------------------------------------------------

TEST_F(ProtocolSimulation, AHeadInBothPlacesWithoutFaults) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed) run_places(seed, {});
  EXPECT_GT(accepted_, 10'000);
  EXPECT_GT(at_target_, 10'000);
  EXPECT_GT(at_worker_, 500);
}

TEST_F(ProtocolSimulation, AHeadInBothPlacesWhereRowsAreLostLateOrTwice) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run_places(seed, {.drop = 0.2, .duplicate = 0.3, .max_delay_us = 30'000, .reorder = true});
  EXPECT_GT(accepted_, 10'000);
  EXPECT_GT(at_worker_, 100);
}

TEST_F(ProtocolSimulation, AHeadInBothPlacesWithWorkersThatDie) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run_places(seed, {.worker_death = 0.1, .silent_death = seed % 2 == 0});
  EXPECT_GT(struck_.worker_death, 100);
  EXPECT_GT(accepted_, 10'000);
}

TEST_F(ProtocolSimulation, AHeadInBothPlacesWithEverythingAtOnce) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run_places(seed, everything(seed, 0.002), seed % 3 == 0 ? 8 : 0, 1 + static_cast<int32_t>(seed % 3));
  EXPECT_GT(accepted_, 1000);
  EXPECT_GT(at_worker_, 50);
}

// A hundred texts, one by one, where a pass takes 500 us.
struct PlacesRun {
  PlacesRun(int64_t own_draft_us, int64_t link_us, int workers) {
    ProtocolOptions options;
    options.max_num_seqs = 1;
    SimulatedCluster cluster(7, options, parse_gamma_policy("fixed:gamma=3").value(),
                             {.max_delay_us = link_us}, workers, 0.8, 0, 0, true);
    cluster.draft_at_targets(500, own_draft_us);
    std::vector<SimulatedRequest> requests(100);
    for (size_t i = 0; i < requests.size(); ++i) {
      for (int32_t n = 0; n < 4; ++n)
        requests[i].request.prompt.emplace_back((static_cast<int32_t>(i) + n) % kToyVocab);
      requests[i].request.max_tokens = 80;
      requests[i].request.ignore_eos = true;
      requests[i].submit_at_us = 200'000;  // all have joined
    }
    EXPECT_TRUE(cluster.run(requests));
    for (size_t i = 0; i < requests.size(); ++i)
      EXPECT_EQ(cluster.outcomes().at(SequenceId(i + 1)).ids, plain(requests[i].request));
    totals = cluster.protocol().totals();
    seconds = totals.wall_seconds();
  }
  double worker_share() const {
    const auto at_worker = static_cast<double>(totals.head_rounds_at_worker);
    return at_worker / (at_worker + static_cast<double>(totals.head_rounds_at_target));
  }
  Totals totals;
  double seconds;
};

TEST(HeadInBothPlaces, DraftsWhereRoundsAreShorter) {
  const PlacesRun alone(50, 100, 0), far(50, 5'000, 1), hopeless(50, 50'000, 1),
      slow_at_target(3'000, 100, 1);
  EXPECT_EQ(alone.totals.head_rounds_at_worker, 0);
  EXPECT_LT(far.worker_share(), 0.02);
  EXPECT_LT(far.seconds, 1.03 * alone.seconds);
  EXPECT_EQ(hopeless.totals.head_rounds_at_worker, 0) << "rehearsals alone";
  EXPECT_LT(hopeless.seconds, 1.01 * alone.seconds);
  EXPECT_GT(slow_at_target.worker_share(), 0.7);
  EXPECT_LT(slow_at_target.seconds, 0.6 * PlacesRun(3'000, 100, 0).seconds);
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
