// The simulator against closed forms, against itself, and against bad input.
#include <gtest/gtest.h>

#include "coordinator/gamma/acceptance.h"
#include "coordinator/gamma/closed_forms.h"
#include "launch/simulate/cluster_simulator.h"
#include "launch/simulate/league.h"
#include "launch/simulate/theory.h"

namespace outrider {
namespace {

constexpr double kStep = 0.010;  // a plain pass

SimulationResult simulate(const SimulationOptions& options, const std::string& policy, double alpha,
                          int32_t tokens, int32_t requests = 1, uint64_t seed = 1) {
  const auto acceptance = AcceptanceProcess::of_rates({alpha}, 0, seed).value();
  const auto arrivals = make_arrivals("closed", requests, 8, tokens, seed).value();
  return ClusterSimulator(options, parse_gamma_policy(policy).value(), acceptance).run(arrivals).value();
}

// algorithms.md 4.2 with delay and with dearer verification. 40,000 tokens: the standard error of the rate is
// about 0.5 %, and the seed is fixed.
TEST(Simulator, AgreesWithTheClosedFormOfLockstep) {
  struct Case {
    double alpha;
    int gamma;
    double rho, delay, per_token;
  };
  for (const Case& c :
       {Case{0.8, 5, 0.05, 0, 0}, Case{0.7, 4, 0.1, 0.2, 0.02}, Case{0.9, 8, 0.02, 0.05, 0.01},
        Case{0.5, 3, 0.2, 0, 0.05}, Case{0.95, 12, 0.01, 0.1, 0}, Case{0.3, 1, 0.5, 0, 0}}) {
    const double row = c.per_token * kStep;
    const SimulationOptions options{.target = {.base = kStep - row, .per_row = row},
                                    .draft = {.base = c.rho * kStep},
                                    .draft_link = {.delay_s = c.delay * kStep}};
    const auto result = simulate(options, fmt::format("fixed:gamma={}", c.gamma), c.alpha, 40'000);
    const double speedup = result.tokens_per_second() * kStep;
    EXPECT_NEAR(speedup / lockstep_speedup(c.alpha, c.gamma, c.rho, c.delay, c.per_token), 1, 0.02)
        << c.alpha << " " << c.gamma;
    EXPECT_NEAR(result.totals.rounds.acceptance(), c.alpha, 0.015);
  }
}

TEST(Simulator, PlainDecodingTakesAStepAToken) {
  const auto result =
      simulate({.target = {.base = kStep}, .draft = {.base = 0.001}}, "fixed:gamma=0", 0.9, 1000);
  EXPECT_NEAR(result.tokens_per_second() * kStep, 1, 1e-3);
  EXPECT_EQ(result.draft_busy, 0);
}

TEST(Simulator, TheSameSeedGivesTheSameBits) {
  const SimulationOptions options{.target = {.base = kStep, .per_row = 1e-4},
                                  .draft = {.base = 1e-3, .per_row = 1e-5},
                                  .drafters = 3,
                                  .draft_link = {.delay_s = 1e-3, .bytes_per_second = 1e8}};
  for (const char* policy : {"ewma", "goodput", "bandit", "threshold", "position"}) {
    const auto one = simulate(options, policy, 0.8, 200, 40), two = simulate(options, policy, 0.8, 200, 40);
    EXPECT_EQ(one.fingerprint, two.fingerprint) << policy;
    EXPECT_EQ(one.seconds, two.seconds);
    EXPECT_NE(one.fingerprint, simulate(options, policy, 0.8, 200, 40, 2).fingerprint);
  }
}

TEST(Simulator, ThePolicySeesTheCostsThatWereSet) {
  const SimulationOptions options{
      .target = {.base = kStep, .per_row = 5e-4}, .draft = {.base = 1e-3}, .draft_link = {.delay_s = 2e-3}};
  const auto result = simulate(options, "ewma", 0.8, 4000);
  const VerifyCost verify = result.cost.verify();
  EXPECT_NEAR(verify.base, kStep, 2e-4);
  EXPECT_NEAR(verify.per_row, 5e-4, 5e-5);
  EXPECT_NEAR(result.cost.draft_phase_seconds(6, 6), 6e-3 + 4e-3, 2e-4);
}

// Ten drafters and a batch: drafts of one worker share its passes.
TEST(Simulator, DrafterTimeIsSharedByABatch) {
  const SimulationOptions options{
      .target = {.base = kStep}, .draft = {.base = 1e-3}, .drafters = 1, .max_num_seqs = 16};
  const auto result = simulate(options, "fixed:gamma=4", 0.8, 400, 16);
  // Rounds of 4 draft passes and one target pass, however many sequences take part.
  const double round = kStep + 4e-3;
  const double per_sequence = expected_tokens(0.8, 4) / round;
  EXPECT_NEAR(result.tokens_per_second() / (16 * per_sequence), 0.9, 0.1);  // the slowest sequence ends alone
}

TEST(Simulator, FallsInAcceptanceAreFollowed) {
  const SimulationOptions options{.target = {.base = kStep}, .draft = {.base = 2e-3}};
  const auto good = AcceptanceProcess::of_rates({0.9}, 0, 3).value();
  const std::vector<SimulationStep> steps{
      {.at_s = 10, .acceptance = AcceptanceProcess::of_rates({0.02}, 0, 3).value()}};
  ClusterSimulator simulator(options, parse_gamma_policy("ewma").value(), good, steps);
  int rounds_after = 0, last_speculative = 0;
  double drafted_late = 0;
  simulator.on_round([&](const RoundDone& round, double at) {
    if (at < 10) return;
    ++rounds_after;
    if (round.gamma > 2) last_speculative = rounds_after;
    if (rounds_after > 32) drafted_late += round.gamma;
  });
  const auto result = simulator.run(make_arrivals("closed", 1, 8, 8000, 1).value()).value();
  EXPECT_GT(rounds_after, 500);
  EXPECT_LE(last_speculative, 32);
  EXPECT_LT(drafted_late / rounds_after, 0.1);
  EXPECT_GT(result.totals.rounds.g0_rounds, 400);
}

TEST(League, TheDefaultPolicyIsNearTheBestFixedLengthInASmallGrid) {
  LeagueOptions options;
  options.policies = {"ewma", "fixed:gamma=5"};
  options.acceptance = {0.3, 0.8, 0.95};
  options.draft_cost = {0.02, 0.2, 0.5};
  options.batch = {1, 8};
  options.seeds = 2;
  const auto rows = run_league(options).value();
  ASSERT_EQ(rows.front().policy, "ewma");
  EXPECT_LT(rows.front().regret, 0.03);
  EXPECT_GE(rows.front().worst_over_plain, 0.95);
  EXPECT_GT(rows.back().regret, 0.1);
  EXPECT_FALSE(run_league({.policies = {"ewmaa"}}).ok());
}

TEST(Theory, ThePublishedTablesToThePrintedDigits) {
  const std::string report = theory_report();
  for (const char* row :
       {"0.50    1.88  1.97  1.99  2.00", "0.70    2.53  2.94  3.14  3.27", "0.80    2.95  3.69  4.16  4.57",
        "0.90    3.44  4.69  5.70  6.86", "0.95    3.71  5.30  6.73  8.62"})
    EXPECT_NE(report.find(row), std::string::npos) << row << "\n" << report;
  for (const char* entry :
       {"7 / 2.30", "6 / 2.17", "4 / 1.92",  "3 / 1.67",  "2 / 1.40",  "1 / 1.07",  "9 / 2.97", "8 / 2.76",
        "6 / 2.35", "4 / 1.98", "3 / 1.58",  "1 / 1.13",  "14 / 4.23", "11 / 3.82", "8 / 3.09", "6 / 2.47",
        "4 / 1.87", "2 / 1.22", "24 / 7.49", "19 / 6.37", "13 / 4.67", "10 / 3.43", "7 / 2.37", "3 / 1.38"})
    EXPECT_NE(report.find(entry), std::string::npos) << entry << "\n" << report;
}

}  // namespace
}  // namespace outrider
