// The simulator against closed forms, against itself, and against bad input.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "cluster/simulation/simulated_text.h"
#include "coordinator/gamma/acceptance.h"
#include "coordinator/gamma/closed_forms.h"
#include "lab/simulate/clocked_drafter.h"
#include "lab/simulate/cluster_simulator.h"
#include "lab/simulate/league.h"
#include "lab/simulate/measured_costs.h"
#include "lab/simulate/plan.h"
#include "lab/simulate/simulated_run.h"
#include "tests/support/temporary_directory.h"

namespace outrider {
namespace {

constexpr double kStep = 0.010;  // a plain pass

SimulationResult simulate(const JobOptions& group, const std::string& policy, double alpha, int32_t tokens,
                          int32_t requests = 1, uint64_t seed = 1) {
  const auto acceptance = AcceptanceProcess::of_rates({alpha}, 0, seed).value();
  const auto arrivals = make_arrivals("burst", requests, 8, tokens, seed).value();
  return ClusterSimulator({.job = group, .gamma_policy = policy}, acceptance).run(arrivals).value();
}

// The closed form with delay and with dearer verification. 40,000 tokens: the standard error of the rate is
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
    const JobOptions options{.target = {.base = kStep - row, .per_row = row},
                             .draft = {.base = c.rho * kStep},
                             .draft_link = {.delay_s = c.delay * kStep}};
    const auto result = simulate(options, fmt::format("fixed:gamma={}", c.gamma), c.alpha, 40'000);
    const double speedup = result.tokens_per_second() * kStep;
    EXPECT_NEAR(speedup / lockstep_speedup(c.alpha, c.gamma, c.rho, c.delay, c.per_token), 1, 0.02)
        << c.alpha << " " << c.gamma;
    EXPECT_NEAR(result.totals.rounds.acceptance(), c.alpha, 0.015);
  }
}

// The engine's own staged drafts. It reads guesses in all passes but a few, which find out whether they pay,
// and those are what the form does not know: 1 in 33.
TEST(Simulator, AgreesWithTheClosedFormOfDraftsForTheDrafter) {
  struct Case {
    double alpha;
    int gamma;
    double rho, beta;
    int guesses;
    double row;
  };
  for (const Case& c :
       {Case{0.8, 8, 0.1, 0.6, 4, 0.02}, Case{0.9, 12, 0.2, 0.8, 8, 0.05}, Case{0.7, 6, 0.1, 0.9, 16, 0},
        Case{0.8, 5, 0.2, 0.5, 1, 0.02}, Case{0.5, 4, 0.3, 1, 3, 0.01}}) {
    const double step = c.rho * kStep;
    const JobOptions options{.target = {.base = kStep},
                             .draft = {.base = step * (1 - c.row), .per_row = step * c.row},
                             .guesses = {.most = c.guesses, .acceptance = c.beta}};
    const auto result = simulate(options, fmt::format("fixed:gamma={}", c.gamma), c.alpha, 40'000);
    const double draft = staged_draft(c.beta, c.gamma, c.guesses).steps(c.row);
    const double expected = expected_tokens(c.alpha, c.gamma) / (1 + c.rho * draft);
    EXPECT_NEAR(result.tokens_per_second() * kStep / expected, 1, 0.025) << c.beta << " " << c.guesses;
    EXPECT_GT(expected, 1.02 * lockstep_speedup(c.alpha, c.gamma, c.rho, 0, 0)) << "guesses pay";
  }
}

// Guesses that are never right are soon no longer read.
TEST(Simulator, DraftsForTheDrafterThatAreWrongCostLittle) {
  JobOptions options{.target = {.base = kStep}, .draft = {.base = 0.1 * kStep, .per_row = 0.05 * kStep}};
  const double without = simulate(options, "fixed:gamma=5", 0.8, 20'000).tokens_per_second();
  options.guesses = {.most = 8, .acceptance = 0};
  EXPECT_GT(simulate(options, "fixed:gamma=5", 0.8, 20'000).tokens_per_second(), 0.98 * without);
}

// The engine's own preparation, at the hit rate that it reached: a hit hides the drafting behind the round.
// Verification lasts long enough for everything that is prepared.
TEST(Simulator, AgreesWithTheClosedFormOfTheOutcomeCache) {
  struct Case {
    double alpha;
    int gamma;
    double rho, delay;
  };
  for (const Case& c :
       {Case{0.8, 4, 0.1, 0}, Case{0.8, 6, 0.1, 0.2}, Case{0.6, 3, 0.05, 0.1}, Case{0.9, 7, 0.1, 0.5}}) {
    const JobOptions options{.target = {.base = kStep},
                             .draft = {.base = c.rho * kStep},
                             .draft_link = {.delay_s = c.delay * kStep},
                             .max_num_seqs = 1,
                             .pipeline = Pipeline::kFanout,
                             .fanout = 16};
    const auto result = simulate(options, fmt::format("fixed:gamma={}", c.gamma), c.alpha, 4000, 5);
    const PreparationTotals& ahead = result.totals.preparation;
    EXPECT_GT(ahead.hit_rate(), 0.5);
    EXPECT_GT(ahead.lookups, result.totals.rounds.rounds * 9 / 10);
    const double expected =
        expected_tokens(c.alpha, c.gamma) / (1 + 2 * c.delay + (1 - ahead.hit_rate()) * c.gamma * c.rho);
    EXPECT_NEAR(result.tokens_per_second() * kStep / expected, 1, 0.02) << c.alpha << " " << c.gamma;
    EXPECT_GT(result.tokens_per_second() * kStep,
              1.05 * lockstep_speedup(c.alpha, c.gamma, c.rho, c.delay, 0));
  }
}

// Drafting ahead as the engine has it: the first token of what was drafted ahead is
// tested by the bonus token, so blocks after the first are one longer.
TEST(Simulator, AgreesWithTheClosedFormOfDraftAhead) {
  for (const auto& [alpha, gamma, rho] :
       {std::tuple(0.8, 6, 0.1), std::tuple(0.9, 9, 0.1), std::tuple(0.6, 3, 0.2)}) {
    const JobOptions options{.target = {.base = kStep},
                             .draft = {.base = rho * kStep},
                             .max_num_seqs = 1,
                             .pipeline = Pipeline::kAhead};
    const auto result = simulate(options, fmt::format("fixed:gamma={}", gamma), alpha, 4000, 5);
    const double draft = gamma * rho, goes_on = std::pow(alpha, gamma + 1);
    const double expected =
        1 / (1 - alpha) / (draft + 1 + std::max(1.0, draft + rho) * goes_on / (1 - goes_on));
    EXPECT_NEAR(result.tokens_per_second() * kStep / expected, 1, 0.02) << alpha << " " << gamma;
    EXPECT_NEAR(result.totals.preparation.hit_rate(), goes_on, 0.02);
    EXPECT_NEAR(expected / ahead_carry_speedup(alpha, gamma, draft, 1, 0), 1, 0.06);
  }
}

// The cheap drafter of lockstep takes the time of the production worker: two texts, drafts of two lengths.
TEST(Simulator, BothDraftersTakeTheSameTimeInLockstep) {
  const ForwardCost cost{.base = 1e-3, .per_row = 1e-4};
  const auto acceptance = AcceptanceProcess::of_rates({0.8}, 0, 1).value();
  EventQueue one, two;
  std::vector<std::pair<SimTime, size_t>> simulated, production;
  SimulatedDrafter cheap(one, cost, acceptance, [&](Message message) {
    simulated.emplace_back(one.now(), std::get<Draft>(message).ids.size());
  });
  ClockedDrafter real(two, {.cost = cost}, [&](Message message) {
    production.emplace_back(two.now(), std::get<Draft>(message).ids.size());
  });
  const auto play = [](EventQueue& events, DrafterOnClock& drafter) {
    const std::vector<TokenId> prompt(9, kBestGuess);
    for (uint64_t id : {1, 2})
      drafter.receive(Open{.sequence = SequenceId(id), .ids = prompt, .prompt_length = 9, .sampling = {}});
    for (int32_t id : {1, 2})
      drafter.receive(Propose{.sequence = SequenceId(static_cast<uint64_t>(id)),
                              .epoch = Epoch(0),
                              .round = Round(1),
                              .base = Position(9),
                              .committed = {},
                              .gamma = 2 * id,
                              .stop = {}});
    while (!events.empty()) events.run_next();
  };
  play(one, cheap);
  play(two, real);
  ASSERT_EQ(simulated.size(), 2u);
  EXPECT_EQ(simulated, production);
  EXPECT_DOUBLE_EQ(cheap.busy_seconds(), real.busy_seconds());
}

TEST(Simulator, EveryPipelineRunsABatchToItsEnd) {
  for (const Pipeline pipeline : {Pipeline::kAhead, Pipeline::kFanout, Pipeline::kAuto}) {
    const JobOptions options{.target = {.base = kStep, .per_row = 2e-4},
                             .draft = {.base = 1e-3, .per_row = 1e-4},
                             .drafters = 2,
                             .draft_link = {.delay_s = 1e-3},
                             .max_num_seqs = 4,
                             .pipeline = pipeline};
    const auto one = simulate(options, "ewma", 0.8, 300, 12), two = simulate(options, "ewma", 0.8, 300, 12);
    EXPECT_EQ(one.totals.rounds.emitted, 12 * 300);
    EXPECT_EQ(one.fingerprint, two.fingerprint);
    EXPECT_EQ(one.totals.resyncs, 0);
    EXPECT_GT(one.totals.preparation.hits, 0);
  }
}

// Plain decoding of equal texts: four clients go through ten waves, each as long as a burst of four, and
// think between them. A burst of all forty has the same rate without the thinking, but most of it waits in a
// queue.
TEST(Simulator, AClosedLoopAsksAgainWhenItWasAnswered) {
  const auto acceptance = AcceptanceProcess::of_rates({0.8}, 0, 1).value();
  const JobOptions group{.target = {.base = kStep}, .draft = {.base = 1e-3}, .max_num_seqs = 4};
  const auto run = [&](const char* arrivals, int requests) {
    return ClusterSimulator({.job = group, .gamma_policy = "fixed:gamma=0"}, acceptance)
        .run(make_arrivals(arrivals, requests, 16, 50, 1).value())
        .value();
  };
  const auto wave = run("burst", 4), burst = run("burst", 40);
  const auto thoughtful = run("closed:4/1", 40), hasty = run("closed:4", 40);
  // A client's text is fifty steps; three of the four begin a step after the first.
  EXPECT_NEAR(wave.seconds, 51 * kStep, 1e-6);
  EXPECT_NEAR(thoughtful.seconds, wave.seconds + 9 * (50 * kStep + 1), 1e-6);
  // Without a pause the next plan is out when a client comes back, and costs it a step.
  EXPECT_NEAR(hasty.seconds, 10 * wave.seconds, 1e-6);
  EXPECT_EQ(hasty.totals.rounds.emitted, 40 * 50);
  EXPECT_NEAR(hasty.totals.ttft.percentile_ns(0.95) / wave.totals.ttft.percentile_ns(0.95), 1, 0.05);
  EXPECT_GT(burst.totals.ttft.percentile_ns(0.5), 5 * hasty.totals.ttft.percentile_ns(0.5));
  EXPECT_NE(thoughtful.fingerprint, hasty.fingerprint);
}

// One after the other, in the order of asking, except that drafters work side by side.
TEST(DeviceTurns, TargetAndDraftersTakeTurns) {
  DeviceTurns turns;
  std::string log;
  const auto ask = [&](DeviceTurns::Kind kind, char name) { turns.ask(kind, [&log, name] { log += name; }); };
  ask(DeviceTurns::Kind::kDraft, 'a');
  ask(DeviceTurns::Kind::kDraft, 'b');
  ask(DeviceTurns::Kind::kTarget, 'T');
  ask(DeviceTurns::Kind::kDraft, 'c');
  EXPECT_EQ(log, "ab") << "c does not overtake the target";
  turns.end(DeviceTurns::Kind::kDraft);
  EXPECT_EQ(log, "ab");
  turns.end(DeviceTurns::Kind::kDraft);
  EXPECT_EQ(log, "abT");
  turns.end(DeviceTurns::Kind::kTarget);
  EXPECT_EQ(log, "abTc");
}

// In lockstep a draft on the target's device loses nothing against one of its own; preparing while the target
// verifies does, since then the target waits.
TEST(Simulator, ADraftOnTheTargetsDeviceWorksInTurns) {
  for (const Pipeline pipeline : {Pipeline::kLockstep, Pipeline::kAhead, Pipeline::kFanout}) {
    JobOptions options{
        .target = {.base = kStep}, .draft = {.base = 1e-3}, .max_num_seqs = 4, .pipeline = pipeline};
    const auto own = simulate(options, "fixed:gamma=4", 0.8, 400, 4);
    options.in_turns = true;
    const auto shared = simulate(options, "fixed:gamma=4", 0.8, 400, 4);
    EXPECT_EQ(shared.totals.rounds.emitted, 4 * 400);
    EXPECT_LE(shared.target_busy.front() + shared.draft_busy, shared.seconds + 5e-3)
        << "a draft may outlast the texts";
    if (pipeline == Pipeline::kLockstep)
      EXPECT_NEAR(shared.seconds / own.seconds, 1, 0.02);
    else
      EXPECT_GT(shared.seconds, 1.02 * own.seconds);
  }
}

// DFlash: a draft of one token takes as long as the whole block, and gains nothing here; eight tokens gain.
TEST(Simulator, ThePolicyDraftsLongWhereAPassMakesABlock) {
  for (const bool beside_target : {false, true}) {
    const JobOptions options{.target = {.base = kStep, .per_row = 0.01 * kStep},
                             .draft = {.base = 0.7 * kStep, .block_rows = 16},
                             .drafters = beside_target ? 0 : 1,
                             .max_num_seqs = 1,
                             .one_process = true,
                             .beside_target = beside_target};
    const auto speed = [&](const std::string& policy) {
      return simulate(options, policy, 0.6, 20'000).tokens_per_second();
    };
    const double plain = speed("fixed:gamma=0"), eight = speed("fixed:gamma=8");
    EXPECT_LT(speed("fixed:gamma=1"), plain) << beside_target;
    EXPECT_NEAR(eight / plain, expected_tokens(0.6, 8) * 1.01 / 1.79, 0.03) << beside_target;
    EXPECT_GT(speed("ewma"), 0.96 * eight) << beside_target;
  }
}

// A head's token costs its share of a pass and no message, however far the drafters' links reach.
TEST(SimulatedRun, HeadsCostTheirShareOfAPassAndNoMessage) {
  SimulatedRun run{.target_ms = 10, .target_row_ms = 0, .place = DraftPlace::kHeads, .head_share = 0.05};
  run.delay_ms = 3;
  run.gamma_policy = "fixed:gamma=4";
  run.requests = 4;
  run.prompt_tokens = 1;
  run.output_tokens = 5000;
  run.max_num_seqs = 1;
  const auto played = play(run).value();
  const double expected = expected_tokens(0.8, 4) / (1 + 4 * 0.05) / 0.010;
  EXPECT_NEAR(played.figures.tokens_per_second / expected, 1, 0.02);
  EXPECT_NEAR(played.figures.target_busy + played.figures.draft_busy, 1, 1e-3);
}

// A round at a worker waits for the rows, the question and the answer.
TEST(SimulatedRun, RowsOfAHeadTravelOverItsLink) {
  SimulatedRun run{.hardware = "h100:70b:tp4", .place = DraftPlace::kHeadWorkers, .draft_head = "eagle3"};
  run.gamma_policy = "fixed:gamma=4";
  run.requests = 2;
  run.prompt_tokens = 1;
  run.output_tokens = 2000;
  run.max_num_seqs = 1;
  const auto round_seconds = [&](double delay_ms, double gbit) {
    run.delay_ms = delay_ms;
    run.gbit = gbit;
    const auto played = play(run).value();
    EXPECT_NEAR(played.figures.acceptance, 0.8, 0.01);
    return played.figures.tokens_per_round / played.figures.tokens_per_second;
  };
  const double near = round_seconds(0, 0);
  EXPECT_NEAR(round_seconds(5, 0) - near, 2 * 5e-3, 1e-4);
  // 2 bytes of 8192 numbers for each of some 3.4 tokens, at 1/8 GB/s, and what else is said.
  const double rows = 2 * 8192 * expected_tokens(0.8, 4) / 125e6;
  EXPECT_NEAR((round_seconds(0, 1) - near) / rows, 1.05, 0.06);
  // Beside the target the same head takes as long, and nothing travels.
  run.place = DraftPlace::kHeads;
  EXPECT_NEAR(round_seconds(5, 1) / near, 1, 0.01);
  run.draft_head.clear();
  run.place = DraftPlace::kHeadWorkers;
  EXPECT_NE(play(run).status().message().find("--draft-head"), std::string::npos);
}

// 70.55 G parameters of 2 bytes on four devices; 80 layers of 8 KV heads of 128 of 2 bytes for a token.
TEST(SimulatedRun, MemoryIsCountedAndWhatDoesNotFitIsSaid) {
  SimulatedRun run{.hardware = "h100:70b:tp4", .draft_hardware = "h100:1b", .place = DraftPlace::kColocated};
  run.max_num_seqs = 32;
  const MemoryNeed need = describe_job(run, 768).value().memory;
  EXPECT_NEAR(need.weights, 2.0 * 70'553'706'496 / 4, 1);
  EXPECT_NEAR(need.kv, 32 * 768 * 81920.0, 1);
  EXPECT_NEAR(need.draft_weights, 2.472e9, 1e6);
  EXPECT_NEAR(need.draft_kv, 32 * 768 * 2.0 * 16 * 8 * 64 * 2, 1);
  EXPECT_NEAR(need.usable, 72e9, 1);
  EXPECT_LT(need.activations, 1e9);
  run.max_num_seqs = 600;
  const std::string told = describe_job(run, 768).status().message();
  EXPECT_NE(
      told.find("h100:70b:tp4 does not fit with 600 texts of 768 tokens: 35.3 GB of weights, 37.7 GB of KV"),
      std::string::npos)
      << told;
  run.max_num_seqs = 8;
  run.drafters = 5;
  EXPECT_NE(describe_job(run, 768).status().message().find("--drafters 5: colocated"), std::string::npos);
  run.drafters = 1;
  run.draft_hardware = "xeon8480:1b";
  EXPECT_NE(describe_job(run, 768).status().message().find("use --draft-placement cpu"), std::string::npos);
}

TEST(Simulator, AnUnknownPolicyIsAnErrorNotACrash) {
  const auto acceptance = AcceptanceProcess::of_rates({0.8}, 0, 1).value();
  EXPECT_FALSE(ClusterSimulator({.gamma_policy = "ewmaa"}, acceptance).run({}).ok());
}

TEST(Simulator, PlainDecodingTakesAStepAToken) {
  const auto result =
      simulate({.target = {.base = kStep}, .draft = {.base = 0.001}}, "fixed:gamma=0", 0.9, 1000);
  EXPECT_NEAR(result.tokens_per_second() * kStep, 1, 1e-3);
  EXPECT_EQ(result.draft_busy, 0);
}

// Twelve clients with long prompts: passes that read some last longer than the rounds of plain decoding.
TEST(Simulator, RoundsBesidePromptsAreToldApart) {
  const JobOptions job{
      .target = {.base = kStep, .per_row = 0.02 * kStep}, .draft = {.base = 0.001}, .max_num_seqs = 12};
  const auto acceptance = AcceptanceProcess::of_rates({0.8}, 0, 1).value();
  const auto arrivals = make_arrivals("closed:12", 48, 500, 60, 1).value();
  const auto result =
      ClusterSimulator({.job = job, .gamma_policy = "fixed:gamma=0"}, acceptance).run(arrivals).value();
  const DecodingRounds& decoding = result.totals.decoding;
  ASSERT_GT(decoding.rounds, 100);
  EXPECT_LT(decoding.rounds, result.totals.rounds.rounds - 300);
  EXPECT_EQ(decoding.emitted, decoding.rounds);
  const double pass = 1e-9 * static_cast<double>(decoding.phases.verify.count() / decoding.rounds);
  EXPECT_LT(pass, kStep * (1 + 0.02 * 12) * 1.001);
  const double any =
      1e-9 * static_cast<double>(result.totals.phases.verify.count() / result.totals.rounds.rounds);
  EXPECT_GT(any, 2 * pass);
}

TEST(Simulator, TheSameSeedGivesTheSameBits) {
  const JobOptions options{.target = {.base = kStep, .per_row = 1e-4},
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
  const JobOptions options{
      .target = {.base = kStep, .per_row = 5e-4}, .draft = {.base = 1e-3}, .draft_link = {.delay_s = 2e-3}};
  const auto result = simulate(options, "ewma", 0.8, 4000);
  const VerifyCost verify = result.cost.verify();
  EXPECT_NEAR(verify.base, kStep, 2e-4);
  EXPECT_NEAR(verify.per_row, 5e-4, 5e-5);
  EXPECT_NEAR(result.cost.draft_phase_seconds(6, 6), 6e-3 + 4e-3, 2e-4);
}

// Every round's messages are lost by half (30 % each way). What a loss costs is the time until the Propose is
// sent again, which is learnt from answers that were not waited for in vain: who pins gamma still gains, and
// the default policy never loses. A pair of 0.8 and 0.085 ms.
TEST(Simulator, LostMessagesCostLittle) {
  for (const uint64_t seed : {1, 2, 3, 4, 5}) {
    JobOptions options{.target = {.base = 7.7e-4, .per_row = 3e-5},
                       .draft = {.base = 8.2e-5, .per_row = 3e-6},
                       .draft_link = {.delay_s = 7e-5, .loss = 0.3, .seed = seed},
                       .max_num_seqs = 1};
    const double plain = 1 / 8e-4;
    EXPECT_GT(simulate(options, "fixed:gamma=3", 0.8, 400, 4, seed).tokens_per_second(), 1.1 * plain);
    EXPECT_GT(simulate(options, "ewma", 0.8, 400, 4, seed).tokens_per_second(), 0.98 * plain);
    options.draft_link.loss = 0.5;  // one try in four succeeds: repetitions must not get rarer soon
    EXPECT_GT(simulate(options, "fixed:gamma=3", 0.8, 400, 4, seed).tokens_per_second(), 0.65 * plain);
  }
}

// A link of 100 ms one way and 2 Mbit/s, where no length of draft pays for a target of 20 ms: the default
// policy finds out by few rounds, in every pipeline.
TEST(Simulator, AFarDrafterCostsLittle) {
  for (const Pipeline pipeline : {Pipeline::kLockstep, Pipeline::kAhead, Pipeline::kFanout}) {
    const JobOptions options{.target = {.base = 0.020, .per_row = 1e-4},
                             .draft = {.base = 1e-3, .per_row = 1e-5},
                             .draft_link = {.delay_s = 0.1, .bytes_per_second = 2e6 / 8},
                             .max_num_seqs = 1,
                             .pipeline = pipeline};
    const double plain = simulate(options, "fixed:gamma=0", 0.8, 400, 4).tokens_per_second();
    EXPECT_GT(simulate(options, "ewma", 0.8, 400, 4).tokens_per_second(), 0.95 * plain);
  }
}

// A prompt of 3000 tokens takes a drafter 150 ms, and it is asked again meanwhile at most once a request.
TEST(Simulator, ADrafterThatReadsIsLeftToRead) {
  const JobOptions options{.target = {.base = 0.02, .per_row = 2e-4},
                           .draft = {.base = 2e-3, .per_row = 5e-5},
                           .draft_link = {.delay_s = 2e-4},
                           .max_num_seqs = 1};
  const auto acceptance = AcceptanceProcess::of_rates({0.8}, 0, 1).value();
  const auto arrivals = make_arrivals("burst", 4, 3000, 100, 1).value();
  for (const std::string policy : {"fixed:gamma=3", "ewma"}) {
    const auto result =
        ClusterSimulator({.job = options, .gamma_policy = policy}, acceptance).run(arrivals).value();
    EXPECT_LE(result.totals.proposals_repeated, 4) << policy;
  }
}

// Ten drafters and a batch: drafts of one worker share its passes.
TEST(Simulator, DrafterTimeIsSharedByABatch) {
  const JobOptions options{
      .target = {.base = kStep}, .draft = {.base = 1e-3}, .drafters = 1, .max_num_seqs = 16};
  const auto result = simulate(options, "fixed:gamma=4", 0.8, 400, 16);
  // Rounds of 4 draft passes and one target pass, however many sequences take part.
  const double round = kStep + 4e-3;
  const double per_sequence = expected_tokens(0.8, 4) / round;
  EXPECT_NEAR(result.tokens_per_second() / (16 * per_sequence), 0.9, 0.1);  // the slowest sequence ends alone
}

TEST(MeasuredCosts, MeansSetTheLevelAndTheFitTheSlope) {
  CostModel cost;
  for (int i = 0; i < 300; ++i) {
    cost.observe_verify(1 + i % 5, 10, 0.010 + 0.001 * (i % 5));
    cost.observe_draft_phase(4, 4, 0.002, 0.003);
  }
  for (int i = 0; i < 300; ++i)
    cost.observe_verify(1 + i % 5, 10, 2 * (0.010 + 0.001 * (i % 5)));  // a slow spell
  nlohmann::json report;
  cost.fill_json(report["metrics"]["cost_model"]);
  const TemporaryDirectory directory;
  const auto path = directory.write("report.json", report.dump());
  const auto costs = measured_costs(path).value().job;
  EXPECT_NEAR(costs.target.seconds(3, 10), 1.5 * 0.012, 1e-4);
  EXPECT_NEAR(costs.target.per_row, 0.002, 1e-4);
  EXPECT_NEAR(costs.draft.seconds(1, 0), 0.0005, 1e-6);
  EXPECT_NEAR(costs.draft_link.delay_s, 0.0005, 1e-6);
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
  EXPECT_LT(rows.front().regret, 0.02);
  EXPECT_GE(rows.front().worst_over_plain, 0.98);
  EXPECT_GT(rows.back().regret, 0.1);
  EXPECT_FALSE(run_league({.policies = {"ewmaa"}}).ok());
}

}  // namespace
}  // namespace outrider
