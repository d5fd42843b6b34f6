// Trees under the rules that need q. The text depends on ranks, batch, transport and the form of q no more
// than a chain's text does, and the output distribution is the target's.
#include <gtest/gtest.h>

#include <atomic>

#include "tests/end_to_end/request_grid.h"
#include "tests/support/changing_wire.h"
#include "tests/support/law_samples.h"
#include "tests/support/token_law.h"

namespace outrider::sampled_trees_test {
namespace {

using namespace grid;  // NOLINT: the grid's names
using testing::changing;
using testing::DrafterKind;

const std::vector<Rule> kTreeRules{Rule::kSpecInfer, Rule::kKSeq, Rule::kSwor, Rule::kTraversal};
const TreeOptions kFixed{.shape = {.widths = {3, 2, 1}}};
const TreeOptions kSequoia{.shape = {.widths = {}, .nodes = 9}, .by_rank = true};

ClusterOptions cluster_of(const TreeOptions& tree, int tp_size, int batch) {
  return {.target = kTarget,
          .draft = draft_model(),
          .drafter = DrafterKind::kModel,
          .tp_size = tp_size,
          .max_num_seqs = batch,
          .tree = tree.shape,
          .tree_by_rank = tree.by_rank};
}

std::vector<Request> requests() { return grid_requests(kTreeRules, "fixed:gamma=4"); }

class SampledTreeText : public ::testing::TestWithParam<int> {};  // tensor-parallel size

TEST_P(SampledTreeText, DependsOnSeedDrafterAndShapeOnly) {
  for (const TreeOptions& tree : {kFixed, kSequoia}) {
    TestCluster reference(cluster_of(tree, 1, 1));
    const auto expected = reference.run(requests());
    for (const int batch : {1, 8}) {
      ClusterOptions options = cluster_of(tree, GetParam(), batch);
      options.drafters = batch == 8 ? 2 : 1;
      TestCluster cluster(options);
      expect_same(expected, cluster.run(requests()),
                  fmt::format("tp {}, batch {}, sequoia {}", GetParam(), batch, tree.by_rank));
    }
    EXPECT_GT(reference.totals().rounds.accepted, kEnough);
    EXPECT_GT(reference.totals().rounds.rollbacks, kEnough);
    EXPECT_GT(reference.totals().trees.rounds, kEnough);
    for (const DropReason reason : {DropReason::kTree, DropReason::kBadQ, DropReason::kTooLong})
      EXPECT_EQ(reference.totals().dropped(reason), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(TensorParallel, SampledTreeText, ::testing::Values(1, 2, 4, 8));

// Dense, in slices straight to the ranks, compact on a wire, and made of hidden states by every rank.
TEST(SampledTreeQ, TravelsInEveryForm) {
  ClusterOptions options = cluster_of(kFixed, 1, 4);
  TestCluster dense(options);
  const auto expected = dense.run(requests());
  options.tp_size = 2;
  options.slices = true;
  TestCluster slices(options);
  expect_same(expected, slices.run(requests()), "slices");
  EXPECT_GT(slices.totals().slice_bytes, 0);
  EXPECT_EQ(slices.totals().dropped(DropReason::kSliceMissing), 0);
  for (const QKind kind : {QKind::kSparse, QKind::kHidden}) {
    options = cluster_of(kFixed, 1, 4);
    options.q_kind = kind;
    options.row_bytes = 24;  // rows behind filters have this form, too
    TestCluster one(options);
    const auto of_one = one.run(requests());
    options.tp_size = 4;
    options.wire = Wire::kZmqIpc;
    TestCluster ranks(options);
    expect_same(of_one, ranks.run(requests()), fmt::format("q of kind {}", static_cast<int>(kind)));
    EXPECT_GT(ranks.totals().trees.rounds, kEnough);
    EXPECT_EQ(ranks.totals().dropped(DropReason::kBadQ), 0);
  }
}

// A shape of one child each is a chain, and what it draws and decides are those of the rules for chains.
TEST(SampledTreeText, OfShapesThatDoNotBranchIsThatOfTheChainRules) {
  const TreeOptions chain{.shape = {.widths = {1, 1, 1, 1}}};
  for (const Rule rule : kTreeRules) {
    TestCluster chains(cluster_of({}, 1, 8)), trees(cluster_of(chain, 2, 4));
    auto as_tree = grid_requests({rule}, "fixed:gamma=4"), as_chain = as_tree;
    for (Request& request : as_tree) request.gamma = parse_gamma_policy("fixed:gamma=4").value();
    for (Request& request : as_chain) {
      request.sampling.rule = chain_rule(rule);
      request.gamma = parse_gamma_policy("fixed:gamma=4").value();
    }
    expect_same(chains.run(std::move(as_chain)), trees.run(std::move(as_tree)), std::string(rule_name(rule)));
  }
}

TEST(SampledTreeText, RulesForChainsDraftChains) {
  TestCluster chains(cluster_of({}, 1, 4)), trees(cluster_of(kFixed, 1, 4));
  expect_same(chains.run(grid_requests(kPqRules, "fixed:gamma=4")),
              trees.run(grid_requests(kPqRules, "fixed:gamma=4")), "token and block");
  EXPECT_EQ(trees.totals().trees.rounds, 0);
}

TEST(SampledTreeText, LostAndLateMessagesChangeNothing) {
  TestCluster lossless(cluster_of(kFixed, 1, 1));
  const auto expected = lossless.run(requests());
  ClusterOptions options = cluster_of(kFixed, 2, 4);
  options.link = "delay=200us,loss=0.05,duplicate=0.1,reorder=0.1,corrupt=0.02";
  TestCluster cluster(options);
  expect_same(expected, cluster.run(requests()), "faulty link");
}

TEST(SampledTreeText, EosMaxTokensAndContextCutInsideTrees) {
  std::vector<TokenId> eos;
  for (int v = 0; v < kVocab; v += 4) eos.emplace_back(v);
  const auto cut = [] {
    auto all = requests();
    for (size_t i = 0; i < all.size(); ++i) all[i].max_tokens = static_cast<int32_t>(1 + i % 30);
    return all;
  };
  ClusterOptions options = cluster_of(kFixed, 1, 1);
  options.max_context = 40;
  options.eos_ids = eos;
  TestCluster one(options);
  options.tp_size = 2;
  options.max_num_seqs = 4;
  TestCluster ranks(options);
  expect_same(one.run(cut()), ranks.run(cut()), "cut");
}

TEST(SampledTreeDrafts, WhatIsNoTreeOfItsRuleIsDroppedAndCounted) {
  using Change = std::function<void(Draft&)>;
  const std::tuple<const char*, Rule, DropReason, Change> lies[] = {
      {"a token twice without replacement", Rule::kSwor, DropReason::kTree,
       [](Draft& d) {
         d.ids = {d.ids[0], d.ids[0]}, d.parents = {-1, -1}, d.q.resize(1);
       }},
      {"a token twice, from the leaves up", Rule::kTraversal, DropReason::kTree,
       [](Draft& d) {
         d.ids = {d.ids[0], d.ids[0]}, d.parents = {-1, -1}, d.q.resize(1);
       }},
      {"a later parent", Rule::kSpecInfer, DropReason::kTree,
       [](Draft& d) { d.parents.assign(d.ids.size(), static_cast<int32_t>(d.ids.size())); }},
      {"a row less", Rule::kKSeq, DropReason::kBadQ, [](Draft& d) { d.q.pop_back(); }},
      {"a row for each node", Rule::kSpecInfer, DropReason::kBadQ,
       [](Draft& d) { d.q.resize(d.ids.size(), d.q[0]); }},
      {"a token that q has not", Rule::kSwor, DropReason::kBadQ, [](Draft& d) {
         d.q[0].sum -= d.q[0].weights[static_cast<size_t>(d.ids[0].value())];
         d.q[0].weights[static_cast<size_t>(d.ids[0].value())] = 0;
       }}};
  for (const auto& [what, rule, reason, change] : lies) {
    ClusterOptions options = cluster_of(kFixed, 1, 4);
    options.drafter_wire = changing(change);
    TestCluster cluster(options);
    for (const Finished& finished : cluster.run(grid_requests({rule}, "fixed:gamma=4")))
      EXPECT_TRUE(finished.error.ok()) << what;
    EXPECT_GT(cluster.totals().dropped(reason), 0) << what;
    EXPECT_EQ(cluster.totals().rounds.accepted, 0) << what;
  }
}

TEST(SampledTreeText, LogprobsAreOfWhatIsEmitted) {
  auto all = requests();
  for (Request& request : all) request.sampling.logprobs = 2;
  TestCluster cluster(cluster_of(kFixed, 2, 4));
  for (const Finished& finished : cluster.run(std::move(all))) {
    EXPECT_TRUE(finished.error.ok()) << finished.error.message();
    ASSERT_EQ(finished.logprobs.size(), finished.ids.size());
    for (size_t i = 0; i < finished.ids.size(); ++i)
      EXPECT_EQ(finished.logprobs[i].chosen.id, finished.ids[i]);
  }
}

// Emitted sequences of the whole engine against the target's law: chi-square with the Wilson-Hilferty
// quantile for a false alarm in 1e-5, for each of eight runs with fixed seeds.
TEST(SampledTreeLaw, EmittedSequencesFollowTheTarget) {
  constexpr size_t kLength = 4, kTopK = 4;
  constexpr float kTemperature = 4.0f;
  constexpr int kSamples = 10000;
  const std::vector<TokenId> prompt{TokenId(11), TokenId(14), TokenId(10)};
  const auto single = make_single_collectives();
  auto model = testing::load_or_die(testing::golden_model(kTarget), {}, *single);
  testing::Law law;
  testing::extend_law(*model, prompt, prompt.size(), kLength, kTemperature, kTopK, 1, law);
  for (const TreeOptions& tree : {kFixed, kSequoia}) {
    const int repeated = tree.by_rank ? testing::repeated_law_samples() : kSamples;
    const int samples = kSanitized ? 1000 : repeated;
    ClusterOptions options = cluster_of(tree, 1, 8);
    options.q_kind = QKind::kSparse;
    options.row_bytes = 24;
    TestCluster cluster(options);
    for (const Rule rule : kTreeRules) {
      auto seen = testing::count_texts(
          cluster, testing::seeded_requests(
                       prompt, {.rule = rule, .temperature = kTemperature, .top_k = kTopK}, samples));
      testing::expect_follows(law, seen, samples,
                              fmt::format("{}{}", rule_name(rule), tree.by_rank ? ", sequoia" : ""));
    }
    EXPECT_GT(cluster.totals().rounds.rollbacks, 100);
    EXPECT_GT(cluster.totals().trees.accepted, 1000);
  }
}

// More children are accepted more often, and without replacement at least as often as with.
TEST(SampledTrees, AcceptMoreThanChains) {
  std::map<Rule, double> accepted;
  for (const Rule rule : {Rule::kToken, Rule::kSpecInfer, Rule::kKSeq, Rule::kSwor, Rule::kTraversal}) {
    TestCluster cluster(cluster_of({.shape = {.widths = {3, 2, 1}}}, 1, 8));
    auto all = more_requests({rule}, "fixed:gamma=3");
    (void)cluster.run(std::move(all));
    const auto& rounds = cluster.totals().rounds;
    accepted[rule] = static_cast<double>(rounds.accepted) / static_cast<double>(rounds.rounds);
    std::printf("%s: %.3f accepted a round\n", std::string(rule_name(rule)).c_str(), accepted[rule]);
  }
  for (const Rule rule : kTreeRules) EXPECT_GT(accepted[rule], 1.03 * accepted[Rule::kToken]);
  EXPECT_GT(accepted[Rule::kSwor], accepted[Rule::kSpecInfer]);
  EXPECT_GT(accepted[Rule::kTraversal], 0.98 * accepted[Rule::kSwor]);
}

}  // namespace
}  // namespace outrider::sampled_trees_test
