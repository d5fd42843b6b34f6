// What the coordinator knows of trees: shapes, whether they pay, and what they were good for.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "coordinator/draft_check.h"
#include "coordinator/tree_choice.h"
#include "coordinator/tree_shapes.h"
#include "coordinator/tree_sums.h"

namespace outrider {
namespace {

TEST(TreeShapes, CountTheirNodes) {
  EXPECT_EQ(most_nodes({.widths = {4, 2, 1}}, 9), 4 + 8 + 8);
  EXPECT_EQ(most_nodes({.widths = {4, 2, 1}}, 2), 4 + 8);
  EXPECT_EQ(most_nodes({.widths = {}, .nodes = 7}, 3), 7);
  EXPECT_EQ(most_nodes({}, 3), 3) << "a chain";
}

TEST(TreeShapes, AreChainsWhereThereIsNoRoom) {
  const TreeShape fixed{.widths = {4, 2, 1}}, best{.widths = {}, .nodes = 8};
  EXPECT_EQ(fitting_shape(fixed, 3, 20), fixed);
  EXPECT_TRUE(fitting_shape(fixed, 3, 19).is_chain());
  EXPECT_EQ(fitting_shape(fixed, 2, 12), fixed);
  EXPECT_EQ(fitting_shape(best, 3, 5).nodes, 5);
  EXPECT_TRUE(fitting_shape(best, 3, 0).is_chain());
  EXPECT_TRUE(fitting_shape(best, 0, 5).is_chain());
  EXPECT_TRUE(fitting_shape({}, 3, 9).is_chain());
}

TEST(TreeDraftCheck, TakesTreesThatWereAskedFor) {
  const DraftExpectation expected{.gamma = 2, .tree_nodes = 4, .vocab_size = 10};
  const auto reason = [&](std::vector<int32_t> parents, const DraftExpectation& asked) {
    Draft draft{.parents = parents};
    for (size_t i = 0; i < parents.size(); ++i) draft.ids.emplace_back(static_cast<int32_t>(i));
    return check_draft(draft, asked);
  };
  EXPECT_EQ(reason({-1, 0, -1, 2}, expected), std::nullopt);
  EXPECT_EQ(reason({-1, 0, 1}, expected), DropReason::kTree) << "too deep";
  EXPECT_EQ(reason({-1, -1, -1, -1, -1}, expected), DropReason::kTree) << "too many nodes";
  EXPECT_EQ(reason({0}, expected), DropReason::kTree) << "its own parent";
  EXPECT_EQ(reason({-1, 2, -1}, expected), DropReason::kTree);
  EXPECT_EQ(reason({-1, -1}, {.gamma = 2, .vocab_size = 10}), DropReason::kTree) << "not asked for";
  EXPECT_EQ(reason({-1, -1}, {.gamma = 2, .tree_nodes = 4, .vocab_size = 1}), DropReason::kBadIds);
  Draft with_q{.ids = {TokenId(1)},
               .parents = {-1},
               .q_kind = QKind::kSparse,
               .q = {{.ids = {1}, .weights = {1}, .sum = 1}}};
  EXPECT_EQ(check_draft(with_q, {.gamma = 2, .tree_nodes = 4, .q_kinds = {QKind::kSparse}, .vocab_size = 10}),
            DropReason::kTree);
}

TEST(TreeSums, CountDepthsAndRanks) {
  // 0 ( 1 ( 2 ), 3 ), 4
  const DraftTree tree({TokenId(7), TokenId(8), TokenId(9), TokenId(5), TokenId(8)}, {-1, 0, 1, 0, -1});
  TreeSums sums;
  sums.add_round(tree, std::vector<int32_t>{0, 3});
  sums.add_round(tree, std::vector<int32_t>{0, 1, 2});
  sums.add_round(tree, {});
  TreeSums twice = sums;
  twice.add(sums);
  EXPECT_EQ(twice.rounds, 6);
  nlohmann::json json;
  fill_json(sums, json);
  EXPECT_EQ(json["nodes_per_round"], 5.0);
  EXPECT_EQ(json["tested_by_depth"], nlohmann::json({3, 2, 1}));
  EXPECT_EQ(json["accepted_by_depth"], nlohmann::json({2, 2, 1}));
  EXPECT_EQ(json["offered_by_rank"], nlohmann::json({6, 5}));
  EXPECT_EQ(json["accepted_by_rank"], nlohmann::json({4, 1}));
}

// Rounds of one sequence, where trees bring so many times the tokens per second of chains. Returns the loss
// against always doing the better.
double loss_of_choosing(double gain, uint32_t seed, int rounds) {
  TreeChoice choice;
  std::mt19937 random(seed);
  double tokens = 0, seconds = 0;
  for (int step = 0; step < rounds; ++step) {
    const bool branches = choice.branches(static_cast<uint64_t>(step));
    EXPECT_EQ(choice.branches(static_cast<uint64_t>(step)), branches) << "all rounds of a step";
    const auto emitted = static_cast<int32_t>(1 + random() % 5);
    const double took = (0.8 + 0.4 * static_cast<double>(random() % 1000) / 1000) / (branches ? gain : 1);
    choice.observe(branches, emitted, took);
    tokens += emitted;
    seconds += took;
  }
  return 1 - tokens / seconds / (3 * std::max(1.0, gain));
}

TEST(TreeChoice, LosesLittleAgainstTheBetter) {
  for (const double gain : {0.5, 0.8, 0.9, 0.97, 1.0, 1.03, 1.1, 1.3}) {
    double loss = 0;
    for (uint32_t seed = 0; seed < 20; ++seed) loss += loss_of_choosing(gain, seed, 20'000) / 20;
    // Trials of what is half as fast cost a thirty-second of it.
    EXPECT_LT(loss, gain < 0.8 ? 0.035 : 0.0125) << gain;
  }
}

}  // namespace
}  // namespace outrider
