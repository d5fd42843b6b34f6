// Draft heads with tree drafts: under match rules the text is that of plain decoding for every tree shape,
// with the head at the target and at a draft worker, on any number of ranks and in any batch.
#include <gtest/gtest.h>

#include "tests/end_to_end/request_grid.h"
#include "tests/heads/golden_heads.h"
#include "tests/support/law_samples.h"
#include "tests/support/token_law.h"

namespace outrider::head_trees_test {
namespace {

using namespace grid;  // NOLINT: the grid's names
using testing::GoldenHead;

std::vector<TreeShape> shapes() {
  return {{.widths = {4, 2, 1}},
          {.widths = {}, .nodes = 8},
          {.widths = {}, .parents = {-1, -1, 0, 0, 1, 2}},
          {.widths = {}, .nodes = 16},
          {.widths = {1, 3, 2}}};
}

class HeadTrees : public ::testing::TestWithParam<int> {};  // tensor-parallel size

TEST_P(HeadTrees, TextIsThatOfPlainDecoding) {
  TestCluster plain({.target = kTarget});
  const auto expected = plain.run(grid_requests(kMatchRules, ""));
  size_t i = 0;
  for (const GoldenHead& head : testing::kGoldenHeads)
    for (const bool at_worker : {false, true}) {
      const TreeShape shape = shapes()[i++ % shapes().size()];
      if (GetParam() > 1 && at_worker == (i % 4 < 2)) continue;  // each head in one place
      ClusterOptions options{.target = testing::kHeadsTarget,
                             .head = testing::golden_head(head.name).string(),
                             .head_at_worker = at_worker,
                             .head_kind = head.kind,
                             .tp_size = GetParam(),
                             .max_num_seqs = i % 3 == 0 ? 1 : 8,
                             .tree = shape};
      TestCluster cluster(options);
      const auto what = fmt::format("tp {}, head {}, at worker {}, shape {}", GetParam(), head.name,
                                    at_worker, (i - 1) % shapes().size());
      expect_same(expected, cluster.run(grid_requests(kMatchRules, "fixed:gamma=4")), what);
      const Totals& totals = cluster.totals();
      EXPECT_GT(totals.trees.rounds, kEnough) << what;
      EXPECT_GT(totals.rounds.rollbacks, kEnough) << what;
      EXPECT_EQ(totals.dropped(DropReason::kTree), 0) << what;
      EXPECT_EQ(totals.dropped(DropReason::kTooLong), 0) << what;
    }
}

INSTANTIATE_TEST_SUITE_P(TensorParallel, HeadTrees, ::testing::Values(1, 2, 4));

ClusterOptions demo_pair(const TreeShape& shape) {
  const std::string pair = (source_dir() / "launch/demo_pair").string();
  return {.target = pair + "/target", .head = pair + "/eagle3", .max_num_seqs = 3, .tree = shape};
}

// ---- rules with q -----------------------------------------------------------------------------------------

const std::vector<Rule> kTreeRules{Rule::kSpecInfer, Rule::kKSeq, Rule::kSwor, Rule::kTraversal};
const std::vector<std::string> kSampledHeads{"eagle3", "medusa-shared", "dspark", "hydra"};

ClusterOptions sampled(const std::string& name, bool at_worker, int tp_size, int batch) {
  const auto head = std::find_if(testing::kGoldenHeads.begin(), testing::kGoldenHeads.end(),
                                 [&](const GoldenHead& h) { return h.name == name; });
  return {.target = testing::kHeadsTarget,
          .head = testing::golden_head(name).string(),
          .head_at_worker = at_worker,
          .head_kind = head->kind,
          .tp_size = tp_size,
          .max_num_seqs = batch,
          .q_kind = QKind::kSparse,
          .row_bytes = 64,
          .tree = {.widths = {3, 2, 1}}};
}

// Holds for one seed and one place of the draft head, because the place decides how long drafts are near the
// end of a text.
TEST_P(HeadTrees, SampledTextDependsOnNoRankAndNoBatch) {
  const auto requests = [] {
    auto all = more_requests(kTreeRules, "fixed:gamma=3");
    all.resize(kSanitized ? 4 : 24);
    return all;
  };
  size_t i = 0;
  for (const std::string& name : kSampledHeads)
    for (const bool at_worker : {false, true}) {
      ++i;
      if (GetParam() > 1 && at_worker == (i % 4 < 2) && !testing::runs_whole_grids())
        continue;  // each head in one place
      TestCluster reference(sampled(name, at_worker, 1, 1));
      const auto expected = reference.run(requests());
      EXPECT_GT(reference.totals().trees.rounds, kSanitized ? 10 : 50) << name;
      TestCluster cluster(sampled(name, at_worker, GetParam(), 8));
      expect_same(expected, cluster.run(requests()), fmt::format("{}, tp {}", name, GetParam()));
      for (const DropReason reason : {DropReason::kTree, DropReason::kBadQ, DropReason::kTooLong})
        EXPECT_EQ(cluster.totals().dropped(reason), 0) << name;
    }
}

TEST(HeadTreesToo, SampledTokensFollowTheTarget) {
  const int samples = testing::repeated_law_samples();
  constexpr float kTemperature = 2.0f;
  const auto single = make_single_collectives();
  auto model = testing::load_or_die(testing::golden_model(kTarget), {}, *single);
  const std::vector<TokenId> prompt{TokenId(11), TokenId(14), TokenId(10)};
  const auto law = testing::law_of_second(*model, prompt, kTemperature);
  size_t i = 0;
  for (const Rule rule : kTreeRules)
    for (const bool at_worker : {false, true}) {
      const std::string& name = kSampledHeads[i++ % kSampledHeads.size()];
      TestCluster cluster(sampled(name, at_worker, 1, 8));
      auto all = testing::seeded_requests(prompt, {.rule = rule, .temperature = kTemperature}, samples);
      const auto seen = testing::count_second(cluster, std::move(all), law.size());
      testing::expect_follows(law, seen, fmt::format("{} of {}", rule_name(rule), name));
      EXPECT_GT(cluster.totals().trees.rounds, kEnough);
      EXPECT_GT(cluster.totals().rounds.rollbacks, samples / 12);
    }
}

// Trained: a tree brings more than the chain of as many passes.
TEST(HeadTreesToo, ATreeOfATrainedHeadIsAcceptedFurther) {
  const auto requests = [](const char* policy) {
    auto all = more_requests({Rule::kGreedy, Rule::kInvariant}, policy);
    all.resize(kSanitized ? 6 : 24);
    return all;
  };
  TestCluster plain({.target = demo_pair({}).target});
  const auto expected = plain.run(requests(""));
  std::vector<int64_t> accepted;
  for (const TreeShape& shape :
       {TreeShape{}, {.widths = {3, 2, 1, 1}}, {.widths = {}, .nodes = 8}, {.widths = {}, .nodes = 16}}) {
    TestCluster cluster(demo_pair(shape));
    expect_same(expected, cluster.run(requests("fixed:gamma=4")), "demo pair");
    accepted.push_back(1000 * cluster.totals().rounds.accepted / cluster.totals().rounds.rounds);
  }
  for (size_t i = 1; i < accepted.size(); ++i) EXPECT_GT(accepted[i], accepted[0]) << i;
  EXPECT_GE(accepted[3], accepted[2]);
}

TEST(HeadTreesToo, ChosenByRankTheyChangeNoTextEither) {
  TestCluster plain({.target = kTarget});
  const auto expected = plain.run(grid_requests({Rule::kInvariant}, ""));
  for (const bool at_worker : {false, true}) {
    ClusterOptions options{.target = testing::kHeadsTarget,
                           .head = testing::golden_head("eagle3").string(),
                           .head_at_worker = at_worker,
                           .max_num_seqs = 4,
                           .tree = {.widths = {}, .nodes = 9},
                           .tree_by_rank = true};
    TestCluster cluster(options);
    expect_same(expected, cluster.run(grid_requests({Rule::kInvariant}, "fixed:gamma=4")), "by rank");
    EXPECT_GT(cluster.totals().trees.rounds, kEnough);
  }
}

// Ends of requests and of the context, end-of-sequence tokens among the nodes.
TEST(HeadTreesToo, EndsAreThoseOfPlainDecoding) {
  std::vector<TokenId> eos;
  for (int i = 0; i < 40; ++i) eos.emplace_back(7 * i);
  const auto requests = [](const char* policy) {
    auto all = grid_requests({Rule::kInvariant}, policy);
    for (size_t i = 0; i < all.size(); ++i) all[i].max_tokens = static_cast<int32_t>(1 + i % 30);
    return all;
  };
  TestCluster plain({.target = kTarget, .max_context = 40, .eos_ids = eos});
  const auto expected = plain.run(requests(""));
  for (const char* name : {"eagle3", "medusa", "dflash"})
    for (const bool at_worker : {false, true}) {
      ClusterOptions options{.target = testing::kHeadsTarget,
                             .head = testing::golden_head(name).string(),
                             .head_at_worker = at_worker,
                             .head_kind = *head_kind_of(name),
                             .max_num_seqs = 8,
                             .max_context = 40,
                             .eos_ids = eos,
                             .tree = {.widths = {}, .nodes = 10}};
      TestCluster cluster(options);
      expect_same(expected, cluster.run(requests("fixed:gamma=5")), name);
      EXPECT_EQ(cluster.totals().dropped(DropReason::kTree), 0);
    }
}

}  // namespace
}  // namespace outrider::head_trees_test
