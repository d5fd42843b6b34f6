// What policies pay to learn: trials, probe drafts, prompts that a drafter reads. Seeds are fixed, so nothing
// here can fail by chance.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "gamma_world.h"

namespace outrider {
namespace {

using namespace gamma_world;  // NOLINT: the names of these tests

// A request that joins makes the batch decide again; that is no step, and no part of a trial is over with it.
TEST(GammaReaction, RequestsThatJoinUseUpNoTrial) {
  Rounds together("ewma", {.alpha = 0.9, .batch = 16});
  int plain = 0;
  for (int step = 0; step < 80; ++step) plain += together.play() == 0;
  EXPECT_GE(plain, 12) << "the first trial of plain decoding";

  Rounds coming("ewma", {.alpha = 0.9, .batch = 16});
  int run = 0, longest_run = 0;
  for (int step = 0; step < 80; ++step) {
    coming.replace(step % 16);
    run = coming.play() == 0 ? run + 1 : 0;
    longest_run = std::max(longest_run, run);
  }
  EXPECT_GE(longest_run, 12);
}

// From the very first round, when nothing is known: some plain steps are lost at the start, then 1 % to
// probes.
TEST(GammaReaction, LearningHasABudget) {
  for (uint64_t seed = 1; seed <= 10; ++seed)
    for (const World& world :
         {World{.alpha = 0.02, .draft = 0.1}, World{.alpha = 0.3, .draft = 0.5},
          World{.alpha = 0.6, .draft = 2}, World{.alpha = 0.3, .draft = 0.5, .per_row = 0.02, .batch = 32}}) {
      Rounds rounds("ewma", world, seed);
      const double plain = 1 + world.per_row * (world.batch - 1);
      rounds.speedup(500);
      const double lost = rounds.seconds / plain - rounds.tokens / world.batch;
      EXPECT_LE(lost, 4 + 0.02 * 500)
          << "alpha " << world.alpha << " draft " << world.draft << " seed " << seed;
    }
}

// Where probe drafts are tested there are no other trials: from the first round on a useless drafter costs
// what a few drafts lose before it is known for useless, and nothing afterwards.
TEST(GammaReaction, TrialsInTheProbeDraftLoseNothing) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Rounds rounds("ewma", {.alpha = 0.02, .draft = 0.1, .probe_drafts = ProbeDraftMode::kTests}, seed);
    rounds.speedup(300);
    EXPECT_LE(rounds.seconds - rounds.tokens, 3) << seed;
    EXPECT_GE(rounds.speedup(3000), 0.999) << seed;
    EXPECT_GT(rounds.probe_drafts, 20) << seed;
  }
}

// Where cores are shared the target pays for what drafters read. Trials that never find anything get rare.
TEST(GammaReaction, ReadingIsPartOfTheBudget) {
  Rounds rounds("ewma", {.alpha = 0.02, .draft = 0.1, .prefill = 3, .probe_drafts = ProbeDraftMode::kTests});
  rounds.speedup(1000);  // until it is known for useless
  rounds.probe_drafts = 0;
  rounds.speedup(4000);
  EXPECT_GE(rounds.probe_drafts, 3);
  EXPECT_LE(rounds.probe_drafts * 3.2, 0.0025 * 4000 + 2 * 3.2);
}

// Passes of a second and, if `drafts`, draft tokens of a tenth.
CostModel known_costs(bool drafts) {
  CostModel cost;
  for (int i = 0; i < 40; ++i) cost.observe_verify(1 + i % 9, 100, 1 + 0.01 * (i % 9));
  for (int i = 0; i < 10 && drafts; ++i)
    cost.observe_draft_phase(1 + i % 3, 1 + i % 3, 0.1 * (1 + i % 3), 0.1 * (1 + i % 3));
  return cost;
}

// For each sequence: whether the policy would prefill its prompt now, for a draft that the step waits for or
// for a probe draft.
std::vector<bool> reads(const CostModel& cost, const std::vector<std::pair<double, int32_t>>& prompts) {
  const GammaPolicyFactory factory = parse_gamma_policy("ewma").value();
  std::vector<std::unique_ptr<GammaPolicy>> policies;
  std::vector<bool> read;
  for (const auto& [seconds, remaining] : prompts) {
    policies.push_back(factory());
    const int32_t gamma = policies.back()->next({.limit = 64,
                                                 .batch_size = static_cast<int32_t>(prompts.size()),
                                                 .context_length = 100,
                                                 .cost = &cost,
                                                 .probe_drafts = ProbeDraftMode::kTests,
                                                 .prefill_seconds = seconds,
                                                 .remaining = remaining});
    read.push_back(gamma > 0 || policies.back()->probe_draft() > 0);
  }
  return read;
}

// By what is known here drafts save about half a pass a token.
TEST(GammaReaction, APromptIsReadOnlyForTextsThatAreLongEnough) {
  const CostModel cost = known_costs(true);
  EXPECT_EQ(reads(cost, {{20, 10}}), std::vector<bool>{false});
  EXPECT_EQ(reads(cost, {{20, 1000}}), std::vector<bool>{true});
  EXPECT_EQ(reads(cost, {{2, 10}}), std::vector<bool>{true});
  EXPECT_EQ(reads(cost, {{2, 1}}), std::vector<bool>{false});
  // Nothing is read before a pass was measured: what it might save is not known.
  EXPECT_EQ(reads(CostModel(), {{0.1, 1000}}), std::vector<bool>{false});
}

TEST(GammaReaction, OneSequenceFindsOutWhatDraftsCost) {
  const CostModel unknown = known_costs(false);
  EXPECT_EQ(reads(unknown, {{5, 1000}, {4, 1000}, {6, 1000}}), (std::vector<bool>{true, false, false}));
  EXPECT_EQ(reads(unknown, {{5, 1000}, {0, 1000}, {6, 1000}}), (std::vector<bool>{true, true, false}))
      << "whose text has been read costs nothing more";
  EXPECT_EQ(reads(known_costs(true), {{5, 1000}, {4, 1000}, {6, 1000}}),
            (std::vector<bool>{true, true, true}));
}

// A draft token of this process takes `draft` passes, as both workers measured. Where no acceptance could
// pay, trials are an eighth as frequent: they take the target's cores, and can only find that costs have
// changed.
TEST(GammaReaction, TrialsAreRareWhereNoAcceptanceWouldPay) {
  const auto trials = [](double draft, bool local) {
    Rounds rounds("ewma", {.alpha = 0.02,
                           .draft = draft,
                           .probe_drafts = ProbeDraftMode::kTests,
                           .local = local,
                           .shares_cores = true,
                           .is_measured = true});
    rounds.speedup(8000);
    return rounds.probe_drafts;
  };
  EXPECT_GE(trials(0.8, true), 2 * trials(1.2, true)) << "0.8 passes pay at an acceptance of 0.95";
  EXPECT_GE(trials(1.2, true), 1) << "costs may change";
  EXPECT_GE(trials(1.2, false), 2 * trials(1.2, true)) << "of a worker elsewhere the price is not sure";
}

TEST(GammaReaction, ProbeDraftsBringDraftingBack) {
  for (const ProbeDraftMode probe_drafts : {ProbeDraftMode::kCosts, ProbeDraftMode::kTests})
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      Rounds rounds("ewma", {.alpha = 0.02, .draft = 0.1, .probe_drafts = probe_drafts}, seed);
      for (int i = 0; i < 400; ++i) rounds.play();
      rounds.world.alpha = 0.9;
      int32_t gamma = 0;
      for (int i = 0; i < 300; ++i) gamma = std::max(gamma, rounds.play());
      EXPECT_GE(gamma, 5) << "seed " << seed;
    }
}

}  // namespace
}  // namespace outrider
