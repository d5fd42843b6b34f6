// Lossless tree drafts: the text is that of plain decoding for every draft, on any number of ranks. The KV
// cache equals that of a fresh prefill, because a difference would change the text of later steps.
#include <gtest/gtest.h>

#include <atomic>
#include <random>

#include "tests/end_to_end/request_grid.h"
#include "tests/support/changing_wire.h"

namespace outrider::trees_test {
namespace {

using namespace grid;  // NOLINT: the grid's names
using testing::changing;
using testing::ChangingWire;
using testing::DrafterKind;

std::string name_of(const TreeShape& shape) {
  if (shape.nodes > 0) return fmt::format("best-first:{}", shape.nodes);
  std::string out;
  for (const int32_t width : shape.widths) out += fmt::format("{}{}", out.empty() ? "" : ",", width);
  return out;
}

const std::vector<TreeShape>& shapes() {
  static const std::vector<TreeShape> all{
      {.widths = {4, 2, 1}},      {.widths = {1, 3, 2}},      {.widths = {1}},
      {.widths = {1, 1, 1, 1}},   {.widths = {}, .nodes = 1}, {.widths = {}, .nodes = 6},
      {.widths = {}, .nodes = 16}};
  return all;
}

ClusterOptions tree_cluster(const TreeShape& shape, int batch) {
  return {.target = kTarget,
          .draft = draft_model(),
          .drafter = DrafterKind::kModel,
          .max_num_seqs = batch,
          .tree = shape};
}

class Trees : public ::testing::TestWithParam<int> {};  // tensor-parallel size

TEST_P(Trees, TextIsThatOfPlainDecoding) {
  TestCluster plain({.target = kTarget});
  const auto expected = plain.run(grid_requests(kMatchRules, ""));
  for (const DrafterKind drafter : {DrafterKind::kModel, DrafterKind::kNgram})
    for (size_t i = 0; i < shapes().size(); ++i) {
      ClusterOptions options = tree_cluster(shapes()[i], i % 2 == 0 ? 1 : 8);
      options.drafter = drafter;
      options.tp_size = GetParam();
      TestCluster cluster(options);
      const auto what = fmt::format("tp {}, tree {}, batch {}, drafter {}", GetParam(), name_of(shapes()[i]),
                                    options.max_num_seqs, static_cast<int>(drafter));
      expect_same(expected, cluster.run(grid_requests(kMatchRules, "fixed:gamma=5")), what);
      EXPECT_GT(cluster.totals().rounds.accepted, kEnough) << what;
      EXPECT_EQ(cluster.totals().dropped(DropReason::kTree), 0) << what;
      EXPECT_EQ(cluster.totals().dropped(DropReason::kTooLong), 0) << what;
      if (drafter == DrafterKind::kModel) {
        EXPECT_GT(cluster.totals().rounds.rollbacks, kEnough) << what;
      }
    }
}

INSTANTIATE_TEST_SUITE_P(TensorParallel, Trees, ::testing::Values(1, 2, 4, 8));

// Some of its nodes in any order in which parents come first, and some wrong ones, up to `most`.
DraftTree shuffled(DraftTreeView tree, size_t most, std::mt19937& random) {
  DraftTree out;
  std::vector<int32_t> place(static_cast<size_t>(tree.size()), -2);
  const auto parent_of = [&](int32_t node) {
    return tree.parent(node) == kTreeRoot ? kTreeRoot : place[static_cast<size_t>(tree.parent(node))];
  };
  const auto add = [&](TokenId id, int32_t parent) {
    if (out.size() == most || child_with(out, parent, id) != kTreeRoot) return false;
    out.ids.push_back(id);
    out.parents.push_back(parent);
    return true;
  };
  const bool drops = random() % 3 == 0;
  while (true) {
    std::vector<int32_t> open;
    for (int32_t i = 0; i < tree.size(); ++i)
      if (place[static_cast<size_t>(i)] == -2 && parent_of(i) != -2) open.push_back(i);
    if (open.empty()) break;
    const int32_t node = open[random() % open.size()];
    if (random() % 4 == 0) (void)add(TokenId(static_cast<int32_t>(random() % kVocab)), parent_of(node));
    const bool kept = !(drops && random() % 6 == 0) && add(tree.id(node), parent_of(node));
    const int32_t known =
        kept ? static_cast<int32_t>(out.size()) - 1 : child_with(out, parent_of(node), tree.id(node));
    place[static_cast<size_t>(node)] = known == kTreeRoot ? -3 : known;
    if (place[static_cast<size_t>(node)] == -3)  // and what is behind it
      for (int32_t i = node + 1; i < tree.size(); ++i)
        if (tree.parent(i) >= 0 && place[static_cast<size_t>(tree.parent(i))] == -3)
          place[static_cast<size_t>(i)] = -3;
  }
  if (out.empty()) add(tree.id(0), kTreeRoot);
  return out;
}

TEST(TreeDrafts, AnyTreeGivesTheSameText) {
  TestCluster plain({.target = kTarget});
  const auto expected = plain.run(grid_requests(kMatchRules, ""));
  for (const auto& [tp_size, batch] : {std::pair{1, 8}, {4, 3}}) {
    std::mt19937 random(7);
    std::atomic<int> trees = 0;
    ClusterOptions options = tree_cluster({.widths = {}, .nodes = 14}, batch);
    options.tp_size = tp_size;
    options.drafter_wire = changing([&](Draft& draft) {
      DraftTree tree = shuffled(draft.tree(), 14, random);
      draft.ids = std::move(tree.ids);
      draft.parents = std::move(tree.parents);
      ++trees;
    });
    TestCluster cluster(options);
    expect_same(expected, cluster.run(grid_requests(kMatchRules, "fixed:gamma=5")),
                fmt::format("{} ranks, batch {}", tp_size, batch));
    EXPECT_GT(trees, kEnough);
    EXPECT_EQ(cluster.totals().dropped(DropReason::kTree), 0);
    EXPECT_GT(cluster.totals().rounds.accepted, kEnough);
  }
}

TEST(TreeDrafts, WhatIsNoTreeIsDroppedAndCounted) {
  TestCluster plain({.target = kTarget});
  const auto expected = plain.run(grid_requests({Rule::kGreedy}, ""));
  const std::pair<const char*, ChangingWire::Change> lies[] = {
      {"its own parent", [](Draft& d) { d.parents.assign(d.ids.size(), 0); }},
      {"a later parent",
       [](Draft& d) { d.parents.assign(d.ids.size(), static_cast<int32_t>(d.ids.size())); }},
      {"a token twice",
       [](Draft& d) {
         d.ids = {d.ids[0], d.ids[0]}, d.parents = {-1, -1};
       }},
      {"too wide",
       [](Draft& d) {
         d.ids.clear();
         for (int32_t i = 0; i < 9; ++i) d.ids.emplace_back(i);
         d.parents.assign(9, -1);
       }},
      {"too many nodes",
       [](Draft& d) {
         d.ids.assign(13, d.ids[0]), d.parents = {-1, 0, 1, 2};
         for (int32_t i = 4; i < 13; ++i)
           d.ids[static_cast<size_t>(i)] = TokenId(i), d.parents.push_back(i % 4);
       }},
      {"too deep", [](Draft& d) { d.ids.assign(6, d.ids[0]), d.parents = {-1, 0, 1, 2, 3, 4}; }}};
  for (const auto& [what, change] : lies) {
    ClusterOptions options = tree_cluster({.widths = {}, .nodes = 12}, 4);
    options.drafter_wire = changing(change);
    TestCluster cluster(options);
    expect_same(expected, cluster.run(grid_requests({Rule::kGreedy}, "fixed:gamma=5")), what);
    EXPECT_GT(cluster.totals().dropped(DropReason::kTree), 0) << what;
    EXPECT_EQ(cluster.totals().rounds.accepted, 0) << what;
  }
}

// One pass holds trees, chains of the rules that need q, and prompts.
TEST(TreeDrafts, BatchesOfTreesAndChains) {
  const auto requests = [](const char* policy) {
    auto all = grid_requests(kMatchRules, policy);
    auto others = grid_requests(kPqRules, "fixed:gamma=4");
    for (size_t i = 0; i < others.size(); ++i)
      all.insert(all.begin() + static_cast<ptrdiff_t>(2 * i), std::move(others[i]));
    return all;
  };
  ClusterOptions options = tree_cluster({}, 8);
  TestCluster chains(options);
  const auto expected = chains.run(requests("fixed:gamma=5"));
  options.tree.widths = {3, 2, 1};
  options.tp_size = 2;
  for (const Pipeline pipeline : {Pipeline::kLockstep, Pipeline::kAhead, Pipeline::kAuto}) {
    options.pipeline = pipeline;
    options.drafters = pipeline == Pipeline::kAuto ? 2 : 1;
    TestCluster trees(options);
    expect_same(expected, trees.run(requests("fixed:gamma=5")),
                fmt::format("pipeline {}", static_cast<int>(pipeline)));
    EXPECT_GT(trees.totals().rounds.accepted, kEnough);
  }
}

TEST(TreeDrafts, GrowOnWhileTheyAreVerified) {
  TestCluster plain({.target = kTarget});
  const auto expected = plain.run(grid_requests(kMatchRules, ""));
  ClusterOptions options = tree_cluster({.widths = {}, .nodes = 8}, 4);
  for (const Pipeline pipeline : {Pipeline::kAhead, Pipeline::kFanout, Pipeline::kAuto})
    for (const char* link : {"", "delay=200us,loss=0.05,duplicate=0.1,reorder=0.1,corrupt=0.02"}) {
      options.pipeline = pipeline;
      options.drafters = pipeline == Pipeline::kAuto ? 2 : 1;
      options.link = link;
      TestCluster cluster(options);
      expect_same(expected, cluster.run(grid_requests(kMatchRules, "fixed:gamma=4")),
                  fmt::format("pipeline {}, {}", static_cast<int>(pipeline), link));
      EXPECT_GT(cluster.totals().rounds.accepted, kEnough);
      if (pipeline != Pipeline::kAuto) {
        EXPECT_GT(cluster.totals().preparation.hits, kEnough / 10);
      }
    }
}

TEST(TreeDrafts, LostAndLateMessagesChangeNothing) {
  TestCluster plain({.target = kTarget});
  const auto expected = plain.run(grid_requests(kMatchRules, ""));
  ClusterOptions options = tree_cluster({.widths = {}, .nodes = 8}, 4);
  options.link = "delay=200us,loss=0.05,duplicate=0.1,reorder=0.1,corrupt=0.02";
  TestCluster cluster(options);
  expect_same(expected, cluster.run(grid_requests(kMatchRules, "fixed:gamma=4")), "faulty link");
  EXPECT_GT(cluster.totals().rounds.accepted, kEnough);
}

TEST(TreeDrafts, EosMaxTokensAndContextCutInsideTrees) {
  std::vector<TokenId> eos;
  for (int v = 0; v < kVocab; v += 4) eos.emplace_back(v);
  ClusterOptions options = tree_cluster({.widths = {}, .nodes = 10}, 4);
  options.max_context = 40;
  options.eos_ids = eos;
  const auto requests = [](bool ignore_eos) {
    auto all = more_requests({Rule::kInvariant}, "fixed:gamma=5");
    for (size_t i = 0; i < all.size(); ++i) {
      all[i].max_tokens = static_cast<int32_t>(1 + i % 30);
      all[i].ignore_eos = ignore_eos;
    }
    return all;
  };
  ClusterOptions without = options;
  without.drafter = DrafterKind::kNone;
  without.max_num_seqs = 1;
  TestCluster plain(without);
  TestCluster cluster(options);
  for (const bool ignore_eos : {false, true})
    expect_same(plain.run(requests(ignore_eos)), cluster.run(requests(ignore_eos)),
                ignore_eos ? "ignoring EOS" : "with EOS");
  EXPECT_GT(cluster.totals().rounds.accepted, kEnough);
}

TEST(TreeDrafts, LogprobsAreThoseOfPlainDecoding) {
  const auto requests = [] {
    auto all = grid_requests({Rule::kGreedy, Rule::kInvariant}, "fixed:gamma=5");
    for (Request& request : all) request.sampling.logprobs = 3;
    return all;
  };
  TestCluster plain({.target = kTarget});
  ClusterOptions options = tree_cluster({.widths = {3, 2, 2}}, 3);
  options.tp_size = 2;
  TestCluster cluster(options);
  const auto expected = plain.run(requests()), actual = cluster.run(requests());
  expect_same(expected, actual, "logprobs");
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(actual[i].logprobs.size(), actual[i].ids.size());
    for (size_t t = 0; t < expected[i].logprobs.size(); ++t) {
      EXPECT_EQ(actual[i].logprobs[t].chosen.id, actual[i].ids[t]);
      EXPECT_EQ(expected[i].logprobs[t].chosen.logprob, actual[i].logprobs[t].chosen.logprob);
      for (size_t k = 0; k < 3; ++k)
        EXPECT_EQ(expected[i].logprobs[t].top[k].id, actual[i].logprobs[t].top[k].id);
    }
  }
}

// The first token that a tree is asked for is that of a chain; the others only add to it.
TEST(TreeDrafts, AcceptMoreThanAChainOfTheirDepth) {
  const auto accepted = [](const TreeShape& shape, int64_t* rounds) {
    TestCluster cluster(tree_cluster(shape, 8));
    (void)cluster.run(grid_requests({Rule::kInvariant}, "fixed:gamma=3"));
    *rounds = cluster.totals().rounds.rounds;
    return cluster.totals().rounds.accepted;
  };
  int64_t chain_rounds = 0, tree_rounds = 0;
  const int64_t chain = accepted({}, &chain_rounds), tree = accepted({.widths = {3, 2, 2}}, &tree_rounds);
  EXPECT_LT(tree_rounds, chain_rounds);
  EXPECT_GT(tree, chain);
}

}  // namespace
}  // namespace outrider::trees_test
