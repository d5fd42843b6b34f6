// Seeded schedules of requests and faults, and their run against the oracle, plain decoding of the toy model.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "coordinator/gamma/policies.h"
#include "simulated_cluster.h"
#include "toy_model.h"

namespace outrider::schedules {

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

inline int32_t pick(std::mt19937_64& random, int32_t low, int32_t high) {
  return std::uniform_int_distribution<int32_t>(low, high)(random);
}

// Every second run drafts trees where its rules allow it.
inline TreeOptions random_tree(uint64_t seed) {
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
inline void share_prompts(std::vector<SimulatedRequest>& requests, uint64_t seed) {
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

inline Schedule random_schedule(uint64_t seed) {
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
inline Schedule random_slices(uint64_t seed) {
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

inline std::vector<TokenId> plain(const Request& request) {
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
    handoffs_ += cluster.protocol().totals().handoffs;
    handoffs_lost_ += cluster.protocol().totals().handoffs_lost;
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
  int64_t handoffs_ = 0, handoffs_lost_ = 0;
  int64_t told_ = 0;                       // rows of hidden states
  int64_t at_target_ = 0, at_worker_ = 0;  // rounds by where a head drafts
  std::array<int64_t, kDropReasonNames.size()> dropped_{};
  std::array<int64_t, 4> finished_{};  // requests, by FinishReason
  FaultCounts struck_, slices_struck_;
};

constexpr uint64_t kSchedules = 700;  // per test

inline Faults everything(uint64_t seed, double target_failure, double target_return = 0) {
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

}  // namespace outrider::schedules
