// Several target groups under one simulated coordinator: the placement of requests, draft workers and heads
// that serve all groups, and the memory of each role.
#include <gtest/gtest.h>

#include <numeric>

#include "coordinator/gamma/acceptance.h"
#include "lab/simulate/cluster_simulator.h"
#include "lab/simulate/simulated_run.h"

namespace outrider {
namespace {

constexpr double kPass = 0.010;  // a plain pass

SimulationResult simulate(const SimulationOptions& options, const Arrivals& arrivals) {
  const auto acceptance = AcceptanceProcess::of_rates({0.8}, 0, 1).value();
  return ClusterSimulator(options, acceptance).run(arrivals).value();
}

Arrivals burst(int32_t requests, int32_t prompt, int32_t output) {
  return make_arrivals("burst", requests, prompt, output, 1).value();
}

TEST(SimulatedGroups, ShareTheArrivalsByLoad) {
  const auto arrivals = make_arrivals("poisson:40", 200, 16, 64, 1).value();
  JobOptions job{.target = {.base = kPass}, .draft = {.base = 1e-3}, .max_num_seqs = 2};
  const auto run = [&](int groups, int jobs) {
    job.groups = job.drafters = groups;
    return simulate({.job = job, .jobs = jobs, .gamma_policy = "fixed:gamma=4"}, arrivals);
  };
  const auto one = run(1, 1), four = run(4, 1), apart = run(1, 4);
  for (const auto* result : {&one, &four, &apart}) {
    EXPECT_EQ(result->totals.rounds.emitted, 200 * 64);
    EXPECT_EQ(result->totals.submitted, 200);
  }
  // One group is overloaded; four are not, under one coordinator or each under its own.
  EXPECT_LT(four.seconds, 0.5 * one.seconds);
  EXPECT_LT(four.totals.ttft.percentile_ns(0.5), 0.1 * one.totals.ttft.percentile_ns(0.5));
  EXPECT_NEAR(four.seconds / apart.seconds, 1, 0.02);
  EXPECT_EQ(four.target_busy.size(), 4u);
  EXPECT_EQ(apart.target_busy.size(), 4u);
}

TEST(SimulatedGroups, ABurstIsDividedEvenly) {
  const JobOptions job{
      .target = {.base = kPass}, .draft = {.base = 1e-3}, .groups = 4, .drafters = 2, .max_num_seqs = 8};
  const auto result = simulate({.job = job, .gamma_policy = "fixed:gamma=4"}, burst(32, 16, 50));
  ASSERT_EQ(result.totals.groups.size(), 4u);
  for (const GroupTotals& group : result.totals.groups) {
    EXPECT_EQ(group.requests, 8);
    EXPECT_EQ(group.emitted, 8 * 50);
  }
}

// A burst with one text for each group. A shared drafter with spare time is as fast as one drafter for each
// group. A shared drafter that is always busy is the bottleneck.
TEST(SimulatedGroups, DraftWorkersAreShared) {
  JobOptions job{.target = {.base = kPass}, .draft = {.base = 1e-3}, .max_num_seqs = 1};
  const auto rate = [&](int groups, int drafters, double draft) {
    job.groups = groups;
    job.drafters = drafters;
    job.draft.base = draft;
    return simulate({.job = job, .gamma_policy = "fixed:gamma=4"}, burst(20 * groups, 8, 200));
  };
  const double alone = rate(1, 1, 1e-3).tokens_per_second();
  EXPECT_NEAR(rate(4, 4, 1e-3).tokens_per_second() / (4 * alone), 1, 0.05);
  const auto shared = rate(4, 1, 1e-3);
  EXPECT_GT(shared.tokens_per_second(), 3 * alone);
  // Four passes of 8 ms for each round, and four groups that ask: drafts of several groups share a pass.
  const auto waited_for = rate(4, 1, 8e-3);
  EXPECT_GT(waited_for.draft_busy / waited_for.seconds, 0.9);
  EXPECT_LT(waited_for.tokens_per_second(), 0.9 * rate(4, 4, 8e-3).tokens_per_second());
}

// The lengths of one group's drafts follow from its own passes, whatever other groups do meanwhile: with as
// many drafters as groups a coordinator of four groups serves as much as four coordinators of one.
TEST(SimulatedGroups, LengthsAreChosenForEachGroup) {
  SimulatedRun run{.hardware = "h100:8b", .draft_hardware = "h100:1b"};
  run.arrivals = "closed:64";
  run.requests = 128;
  run.prompt_tokens = 512;
  run.max_num_seqs = 32;
  for (const char* policy : {"ewma", "goodput", "logistic", "pipelined"}) {
    run.gamma_policy = policy;
    const auto rate = [&](int groups, int coordinators) {
      run.groups = run.drafters = groups;
      run.coordinators = coordinators;
      return play(run)->figures.tokens_per_second;
    };
    EXPECT_GT(rate(4, 1), 0.95 * rate(1, 4)) << policy;
  }
}

// Each leader drafts for its own requests, and no group waits for another's.
TEST(SimulatedGroups, HeadsDraftForTheirOwnGroup) {
  for (const int groups : {1, 2, 8}) {
    const JobOptions job{.target = {.base = kPass},
                         .draft = {.base = 0.05 * kPass},
                         .groups = groups,
                         .drafters = 0,
                         .max_num_seqs = 1,
                         .beside_target = true};
    const auto result = simulate({.job = job, .gamma_policy = "fixed:gamma=4"}, burst(groups, 8, 10'000));
    // The longest of the texts decides how long it takes, by less the longer they are.
    const double expected = groups * expected_tokens(0.8, 4) / (1 + 4 * 0.05) / kPass;
    EXPECT_NEAR(result.tokens_per_second() / expected, 1, 0.03) << groups;
    const double busy = std::accumulate(result.target_busy.begin(), result.target_busy.end(), 0.0);
    EXPECT_NEAR(result.draft_busy / busy, 4 * 0.05, 0.01) << groups;
    EXPECT_EQ(result.bytes, 0);
  }
}

// A request runs in the group that has prefilled the beginning of its prompt.
TEST(SimulatedGroups, ARequestGoesWhereItsBeginningWasRead) {
  JobOptions job{.target = {.base = kPass, .per_row = 1e-4},
                 .draft = {.base = 1e-3},
                 .max_num_seqs = 4,
                 .kv_blocks = 4 * 40};
  const auto arrivals = make_arrivals("poisson:8", 300, 480, 32, 1).value();
  const SharedPrefixes prefixes{.tokens = 400, .kinds = 8};
  const auto hit_rate = [&](int groups, int jobs) {
    job.groups = job.drafters = groups;
    const auto result =
        simulate({.job = job, .jobs = jobs, .gamma_policy = "fixed:gamma=4", .prefixes = prefixes}, arrivals);
    EXPECT_EQ(result.totals.rounds.emitted, 300 * 32);
    EXPECT_EQ(result.totals.prefix_queries, 300 * 480);
    return static_cast<double>(result.totals.prefix_hits) / (300.0 * 480);
  };
  // 160 blocks hold the beginnings of six texts at most. One group of four devices cannot keep all eight
  // beginnings, and neither can four groups that all receive every text. Four groups that receive two texts
  // each can.
  const double together = hit_rate(4, 1), apart = hit_rate(1, 4);
  EXPECT_LE(together, 400.0 / 480);
  EXPECT_GT(together, 0.75);
  EXPECT_LT(apart, together - 0.1);
  EXPECT_LT(hit_rate(1, 1), together - 0.1);
}

TEST(SimulatedGroups, NothingIsFoundWherePromptsShareNothing) {
  SimulatedRun run;
  run.groups = 2;
  run.requests = 8;
  run.output_tokens = 20;
  EXPECT_EQ(play(run)->result.totals.prefix_queries, 0);
  run.prefix_tokens = 100;
  const auto shared = play(run).value();
  EXPECT_GT(shared.figures.prefix_hit_rate, 0.5);
  EXPECT_LT(shared.figures.prefix_hit_rate, 100.0 / 128);
  EXPECT_NE(command_of(run).find("--groups 2"), std::string::npos);
  EXPECT_NE(command_of(run).find("--prefix-tokens 100"), std::string::npos);
  run.prefix_tokens = 128;
  EXPECT_NE(play(run).status().message().find("--prefix-tokens 128 must be fewer"), std::string::npos);
}

// A device of the target holds its own group's texts, whatever other groups there are; one drafter holds
// those of all.
TEST(SimulatedGroups, MemoryIsCountedForEachGroup) {
  SimulatedRun run{.hardware = "h100:70b:tp4", .draft_hardware = "h100:1b"};
  run.max_num_seqs = 4;
  const DescribedJob one = describe_job(run, 1024).value();
  run.groups = 3;
  const DescribedJob three = describe_job(run, 1024).value();
  EXPECT_EQ(one.devices, 4 + 1);
  EXPECT_EQ(three.devices, 3 * 4 + 1);
  EXPECT_EQ(three.memory.total(), one.memory.total());
  EXPECT_DOUBLE_EQ(three.draft_memory.kv, 3 * one.draft_memory.kv);
  run.drafters = 2;
  EXPECT_DOUBLE_EQ(describe_job(run, 1024)->draft_memory.kv, 1.5 * one.draft_memory.kv);
  run.place = DraftPlace::kColocated;
  run.drafters = 13;
  EXPECT_NE(describe_job(run, 1024).status().message().find("the groups' 12 devices"), std::string::npos);
  run.drafters = 300;
  EXPECT_NE(describe_job(run, 1024).status().message().find("256 draft workers at most"), std::string::npos);
}

}  // namespace
}  // namespace outrider
