// Draft heads at the target. On any number of ranks and in any batch, the text under match rules is that of
// plain decoding, and the output distribution under p/q rules is the target's.
#include <gtest/gtest.h>

#include "tests/end_to_end/request_grid.h"
#include "tests/heads/golden_heads.h"
#include "tests/heads/own_module.h"
#include "tests/support/law_samples.h"
#include "tests/support/token_law.h"

namespace outrider::heads_beside_target_test {
namespace {

using namespace grid;  // NOLINT: the grid's names
using testing::GoldenHead;

ClusterOptions with_head(const GoldenHead& head, int tp_size, int batch) {
  return {.target = testing::kHeadsTarget,
          .head = testing::golden_head(head.name).string(),
          .head_kind = head.kind,
          .tp_size = tp_size,
          .max_num_seqs = batch};
}

class HeadsBesideTarget : public ::testing::TestWithParam<int> {};  // tensor-parallel size

TEST_P(HeadsBesideTarget, TextIsThatOfPlainDecoding) {
  TestCluster plain({.target = kTarget});
  const auto expected = plain.run(grid_requests(kMatchRules, ""));
  size_t i = 0;
  for (const GoldenHead& head : testing::together({testing::kGoldenHeads, testing::kHeadsOfTheHost})) {
    const int batch = ++i % 2 == 0 ? 1 : 8;
    TestCluster cluster(with_head(head, GetParam(), batch));
    const auto what = fmt::format("tp {}, head {}, batch {}", GetParam(), head.name, batch);
    expect_same(expected, cluster.run(grid_requests(kMatchRules, "fixed:gamma=4")), what);
    const Totals& totals = cluster.totals();
    EXPECT_GT(totals.rounds.accepted, 0) << what;
    EXPECT_GT(totals.rounds.rollbacks, kEnough) << what;
    // Every draft was asked for with a plan, came with its result, and was tested or not needed any more.
    EXPECT_EQ(totals.drafts_received, totals.proposals) << what;
    int64_t dropped = 0;
    for (size_t reason = 0; reason < totals.drafts_dropped.size(); ++reason)
      if (static_cast<DropReason>(reason) != DropReason::kUnknownSequence)
        dropped += totals.drafts_dropped[reason];
    EXPECT_EQ(dropped, 0) << what;
  }
}

INSTANTIATE_TEST_SUITE_P(TensorParallel, HeadsBesideTarget, ::testing::Values(1, 2, 4));

// Trained: most of its drafts are accepted, and many are not.
TEST_P(HeadsBesideTarget, ATrainedHeadChangesNoTextEither) {
  const std::string pair = (source_dir() / "launch/demo_pair").string();
  TestCluster plain({.target = pair + "/target"});
  const auto expected = plain.run(grid_requests(kMatchRules, ""));
  TestCluster cluster({.target = pair + "/target",
                       .head = pair + "/eagle3",
                       .tp_size = GetParam(),
                       .max_num_seqs = 1 + GetParam()});
  expect_same(expected, cluster.run(grid_requests(kMatchRules, "fixed:gamma=4")), "demo pair");
  EXPECT_GT(cluster.totals().rounds.accepted, kEnough);
  EXPECT_GT(cluster.totals().rounds.rollbacks, kEnough);
}

// Latent attention and a mixture of experts in the target and in its module, which is in the target's own
// files; beside the target, and at a draft worker.
TEST_P(HeadsBesideTarget, AModuleInTheTargetsOwnFilesChangesNoTextEither) {
  const TemporaryDirectory directory;
  testing::write_target_with_module(testing::golden_model("deepseek-v3"), directory.path());
  const std::string target = directory.path().string();
  TestCluster plain({.target = target});
  const auto expected = plain.run(grid_requests(kMatchRules, ""));
  for (const bool at_worker : {false, true}) {
    TestCluster cluster({.target = target,
                         .head = target,
                         .head_at_worker = at_worker,
                         .head_kind = HeadKind::kMtp,
                         .tp_size = GetParam(),
                         .max_num_seqs = 1 + GetParam()});
    expect_same(expected, cluster.run(grid_requests(kMatchRules, "fixed:gamma=4")),
                at_worker ? "at a worker" : "beside the target");
    EXPECT_GT(cluster.totals().rounds.accepted, 0);
    EXPECT_GT(cluster.totals().rounds.rollbacks, kEnough);
  }
}

// Gated delta nets in the target, whose states go back with each rejected draft; chains and trees.
TEST_P(HeadsBesideTarget, AModuleOfATargetWithStatesChangesNoTextEither) {
  for (const std::string& model : testing::kDeltaNetModels) {
    const TemporaryDirectory directory;
    testing::write_target_with_qwen_module(testing::golden_model(model), directory.path());
    const std::string target = directory.path().string();
    TestCluster plain({.target = target});
    const auto expected = plain.run(grid_requests(kMatchRules, ""));
    int64_t accepted = 0;
    for (const auto& [at_worker, shape] :
         {std::pair<bool, TreeShape>{false, {}}, {true, {}}, {false, {.widths = {2, 2, 1}}}}) {
      ClusterOptions options{.target = target,
                             .head = target,
                             .head_at_worker = at_worker,
                             .head_kind = HeadKind::kMtp,
                             .tp_size = at_worker ? 2 * GetParam() : GetParam(),
                             .max_num_seqs = 1 + GetParam()};
      if (!shape.widths.empty()) options.tree = shape;
      TestCluster cluster(options);
      const auto what = fmt::format("{}, worker {}, tree {}", model, at_worker, !shape.widths.empty());
      expect_same(expected, cluster.run(grid_requests(kMatchRules, "fixed:gamma=4")), what);
      accepted += cluster.totals().rounds.accepted;
      EXPECT_GT(cluster.totals().rounds.rollbacks, kEnough) << what;
    }
    EXPECT_GT(accepted, 0) << model;
  }
}

// Lengths that change from round to round, zeros among them, after which the head reads what it missed.
TEST(HeadsBesideTargetToo, AnyPolicyGivesTheSameText) {
  TestCluster plain({.target = kTarget});
  const auto expected = plain.run(grid_requests({Rule::kInvariant}, ""));
  for (const char* policy : {"ewma", "heuristic", "goodput", "bandit", "fixed:gamma=0", "fixed:gamma=9"}) {
    const auto parsed = parse_gamma_policy(policy);
    if (!parsed.ok()) continue;  // not every name is built in
    TestCluster cluster(with_head(testing::kGoldenHeads[0], 1, 3));
    expect_same(expected, cluster.run(grid_requests({Rule::kInvariant}, policy)), policy);
    EXPECT_EQ(cluster.totals().proposals > 0, std::string(policy) != "fixed:gamma=0") << policy;
  }
}

TEST(HeadsBesideTargetToo, EndsAreThoseOfPlainDecoding) {
  std::vector<TokenId> eos;
  for (int i = 0; i < 40; ++i) eos.emplace_back(7 * i);
  const auto requests = [](const char* policy, bool ignore_eos) {
    auto all = grid_requests({Rule::kInvariant}, policy);
    for (size_t i = 0; i < all.size(); ++i) {
      all[i].max_tokens = static_cast<int32_t>(1 + i % 30);
      all[i].ignore_eos = ignore_eos;
    }
    return all;
  };
  TestCluster plain({.target = kTarget, .max_context = 40, .eos_ids = eos});
  ClusterOptions options = with_head(testing::kGoldenHeads[0], 1, 8);
  options.max_context = 40;
  options.eos_ids = eos;
  TestCluster cluster(options);
  for (const bool ignore_eos : {false, true})
    expect_same(plain.run(requests("", ignore_eos)), cluster.run(requests("fixed:gamma=5", ignore_eos)),
                ignore_eos ? "ignoring EOS" : "with EOS");
}

// The first of two drafted tokens is tested, over the whole vocabulary without filters.
TEST(HeadsBesideTargetToo, TokensFollowTheTarget) {
  const int samples = testing::repeated_law_samples();
  constexpr float kTemperature = 2.0f;
  const auto single = make_single_collectives();
  auto model = testing::load_or_die(testing::golden_model(kTarget), {}, *single);
  const std::vector<TokenId> prompt{TokenId(11), TokenId(14), TokenId(10)};
  const auto law = testing::law_of_second(*model, prompt, kTemperature);
  for (const QKind q_kind : {QKind::kSparse, QKind::kDense}) {
    ClusterOptions options = with_head(testing::kGoldenHeads[0], 1, 8);
    options.q_kind = q_kind;
    options.row_bytes = q_kind == QKind::kSparse ? 64 : 0;
    TestCluster cluster(options);
    for (const Rule rule : kPqRules) {
      auto all = testing::seeded_requests(prompt, {.rule = rule, .temperature = kTemperature}, samples);
      const auto seen = testing::count_second(cluster, std::move(all), law.size());
      testing::expect_follows(law, seen, std::string(rule_name(rule)));
    }
    EXPECT_GT(cluster.totals().rounds.rollbacks, samples / 12);
    EXPECT_EQ(cluster.totals().dropped(DropReason::kBadQ), 0);
  }
}

}  // namespace
}  // namespace outrider::heads_beside_target_test
