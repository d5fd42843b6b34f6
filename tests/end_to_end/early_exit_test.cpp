// A target that drafts with its own first layers (early exit). On any number of ranks and in any batch, the
// text under match rules is that of plain decoding, and the output distribution under p/q rules is the
// target's.
#include <gtest/gtest.h>

#include "model/cpu_model.h"
#include "tests/end_to_end/request_grid.h"
#include "tests/support/law_samples.h"
#include "tests/support/test_models.h"
#include "tests/support/token_law.h"

namespace outrider::early_exit_test {
namespace {

using namespace grid;  // NOLINT: the grid's names

ClusterOptions exiting(const std::string& target, int64_t layer, int tp_size, int batch) {
  return {.target = target, .exit_layer = layer, .tp_size = tp_size, .max_num_seqs = batch};
}
std::string demo_target() { return (source_dir() / "launch/demo_pair/target").string(); }

class EarlyExit : public ::testing::TestWithParam<int> {};  // tensor-parallel size

// Runs requests, and counts the rows that the verifying passes of all ranks took up from the drafts before
// them.
struct Counted {
  std::vector<Finished> results;
  Totals totals;
  int64_t rows_taken_up = 0;
};
Counted run_counting(ClusterOptions options, std::vector<Request> requests) {
  Counted run;
  std::atomic<int64_t> taken_up{0};
  options.target_ended = [&](const Model& model) {
    taken_up += dynamic_cast<const CpuModel&>(model).rows_taken_up();
  };
  {
    TestCluster cluster(options);
    run.results = cluster.run(std::move(requests));
    run.totals = cluster.totals();
  }
  run.rows_taken_up = taken_up;
  return run;
}

TEST_P(EarlyExit, TextIsThatOfPlainDecoding) {
  TestCluster plain({.target = demo_target()});
  const auto expected = plain.run(grid_requests(kMatchRules, ""));
  for (const int64_t layer : {1, 6}) {
    const int batch = layer == 1 ? 8 : 3;
    const auto what = fmt::format("tp {}, {} layers, batch {}", GetParam(), layer, batch);
    const Counted run = run_counting(exiting(demo_target(), layer, GetParam(), batch),
                                     grid_requests(kMatchRules, "fixed:gamma=3"));
    expect_same(expected, run.results, what);
    EXPECT_GT(run.totals.rounds.accepted, layer == 6 ? kEnough : 0) << what;
    EXPECT_GT(run.totals.rounds.rollbacks, kEnough) << what;
    EXPECT_EQ(run.totals.drafts_received, run.totals.proposals) << what;
    // A draft of n tokens resumes n rows on every rank: the last committed token and n - 1 drafted ones. A
    // draft that was cut near the end of its text resumes all its rows.
    EXPECT_GE(run.rows_taken_up, GetParam() * run.totals.rounds.drafted) << what;
    EXPECT_EQ(run.rows_taken_up % GetParam(), 0) << what;
  }
}

INSTANTIATE_TEST_SUITE_P(TensorParallel, EarlyExit, ::testing::Values(1, 2, 4, 8));

// Ordinary checkpoints of other families, and texts that end where the cache or the context does.
TEST(EarlyExitToo, FamiliesAndEndsAreThoseOfPlainDecoding) {
  for (const char* model : {"qwen3", "gemma3", "mixtral"}) {
    if (!std::filesystem::exists(testing::golden_model(model))) continue;
    TestCluster plain({.target = model, .max_context = 40});
    ClusterOptions options = exiting(model, 1, 2, 6);
    options.max_context = 40;
    options.kv_tokens = 96;
    const Counted run = run_counting(options, grid_requests({Rule::kInvariant}, "fixed:gamma=5"));
    expect_same(plain.run(grid_requests({Rule::kInvariant}, "")), run.results, model);
    EXPECT_GT(run.totals.proposals, 0) << model;
    EXPECT_GT(run.rows_taken_up, kEnough) << model;
  }
}

// A draft of all layers is the target's own choice.
TEST(EarlyExitToo, AllLayersAreAlwaysRight) {
  TestCluster cluster(exiting("qwen3", 2, 2, 4));
  (void)cluster.run(grid_requests({Rule::kGreedy, Rule::kInvariant}, "fixed:gamma=4"));
  const Totals& totals = cluster.totals();
  EXPECT_GT(totals.rounds.accepted, kEnough);
  EXPECT_EQ(totals.rounds.rollbacks, 0);
}

TEST(EarlyExitToo, TokensFollowTheTarget) {
  const int samples = testing::repeated_law_samples();
  constexpr float kTemperature = 2.0f;
  const auto single = make_single_collectives();
  auto model = testing::load_or_die(testing::golden_model(kTarget), {}, *single);
  const std::vector<TokenId> prompt{TokenId(11), TokenId(14), TokenId(10)};
  const auto law = testing::law_of_second(*model, prompt, kTemperature);
  ClusterOptions options = exiting(kTarget, 1, 2, 8);
  options.q_kind = QKind::kSparse;
  options.row_bytes = 64;
  TestCluster cluster(options);
  for (const Rule rule : kPqRules) {
    auto all = testing::seeded_requests(prompt, {.rule = rule, .temperature = kTemperature}, samples);
    const auto seen = testing::count_second(cluster, std::move(all), law.size());
    testing::expect_follows(law, seen, std::string(rule_name(rule)));
  }
  EXPECT_GT(cluster.totals().rounds.rollbacks, samples / 12);
}

}  // namespace
}  // namespace outrider::early_exit_test
