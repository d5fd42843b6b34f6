// The coordinator's handling of draft trees: shapes, the choice between trees and chains, and the statistics
// of accepted tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "coordinator/choices/head_place.h"
#include "coordinator/choices/rank_acceptance.h"
#include "coordinator/choices/tree_choice.h"
#include "coordinator/choices/tree_shapes.h"
#include "coordinator/metrics/tree_sums.h"
#include "coordinator/rounds/draft_check.h"

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
  // This very tree, without what is too deep.
  const TreeShape listed{.widths = {}, .parents = {-1, 0, 1, -1, 0, 3, 2}};
  EXPECT_EQ(fitting_shape(listed, 4, 7), listed);
  EXPECT_TRUE(fitting_shape(listed, 4, 6).is_chain());
  EXPECT_EQ(fitting_shape(listed, 2, 5).parents, (std::vector<int32_t>{-1, 0, -1, 0, 2}));
  EXPECT_EQ(fitting_shape(listed, 1, 5).parents, (std::vector<int32_t>{-1, -1}));
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
  EXPECT_EQ(check_draft(with_q, expected), DropReason::kBadQ) << "not asked for";
}

// A row of q for each node with children.
TEST(TreeDraftCheck, TakesTreesWithTheirQ) {
  const QRow row{.ids = {1, 2, 3}, .weights = {5, 2, 1}, .sum = 8};
  // 1 ( 2, 1 ), 3
  Draft draft{.ids = {TokenId(1), TokenId(2), TokenId(1), TokenId(3)},
              .parents = {-1, 0, 0, -1},
              .q_kind = QKind::kSparse,
              .q = {row, row}};
  DraftExpectation expected{.gamma = 2, .tree_nodes = 4, .q_kinds = {QKind::kSparse}, .vocab_size = 10};
  EXPECT_EQ(check_draft(draft, expected), std::nullopt);
  draft.ids[2] = TokenId(2);
  EXPECT_EQ(check_draft(draft, expected), DropReason::kTree) << "drawn twice without replacement";
  expected.equal_siblings = true;
  EXPECT_EQ(check_draft(draft, expected), std::nullopt);
  draft.ids[3] = TokenId(4);
  EXPECT_EQ(check_draft(draft, expected), DropReason::kBadQ) << "of weight 0 in the root's row";
  draft.ids[3] = TokenId(3);
  draft.q.push_back(row);
  EXPECT_EQ(check_draft(draft, expected), DropReason::kBadQ) << "a row of a leaf";
  draft.q.resize(1);
  EXPECT_EQ(check_draft(draft, expected), DropReason::kBadQ);
  draft.q.clear();
  draft.q_kind = QKind::kHidden;
  draft.hidden.assign(2, {.scale = 1, .max = 0, .codes = {1, 2}});
  expected.q_kinds = {QKind::kHidden};
  EXPECT_EQ(check_draft(draft, expected), std::nullopt);
  draft.hidden.pop_back();
  EXPECT_EQ(check_draft(draft, expected), DropReason::kBadQ);
}

TEST(RankAcceptance, TreesAreThoseOfTheDynamicProgramme) {
  RankAcceptance ranks;
  // A drafter whose first child is taken 5 times in 10, the second 3 times, the third once.
  const DraftTree three({TokenId(1), TokenId(2), TokenId(3)}, {-1, -1, -1});
  for (int i = 0; i < 4000; ++i) {
    const int at = i * 7 % 10;
    std::vector<int32_t> path;
    if (at < 9) path.push_back(at < 5 ? 0 : at < 8 ? 1 : 2);
    ranks.observe(three, path);
  }
  EXPECT_NEAR(ranks.chance(0), 0.5, 0.02);
  EXPECT_NEAR(ranks.chance(1), 0.3, 0.02);
  EXPECT_NEAR(ranks.chance(2), 0.1, 0.02);
  std::vector<double> chances;
  for (size_t rank = 0; rank < kMaxTreeChildren; ++rank) chances.push_back(ranks.chance(rank));
  // best[d][n]: expected accepted tokens behind a node that the target came to, with n nodes of d levels.
  // split[r][n]: the same of its children from rank r on.
  constexpr int kNodes = 20, kDepth = 6;
  std::vector<std::vector<double>> best(kDepth + 1, std::vector<double>(kNodes + 1));
  for (int depth = 1; depth <= kDepth; ++depth) {
    std::vector<std::vector<double>> split(chances.size() + 1, std::vector<double>(kNodes + 1));
    for (size_t rank = chances.size(); rank-- > 0;)
      for (int nodes = 1; nodes <= kNodes; ++nodes)
        for (int mine = 1; mine <= nodes; ++mine)
          split[rank][static_cast<size_t>(nodes)] = std::max(
              split[rank][static_cast<size_t>(nodes)],
              chances[rank] * (1 + best[static_cast<size_t>(depth - 1)][static_cast<size_t>(mine - 1)]) +
                  split[rank + 1][static_cast<size_t>(nodes - mine)]);
    best[static_cast<size_t>(depth)] = split[0];
  }
  for (const int depth : {1, 2, 4, 6})
    for (const int nodes : {1, 2, 3, 5, 9, 20}) {
      const TreeShape shape = ranks.best_tree(nodes, depth);
      const DraftTree tree(std::vector<TokenId>(shape.parents.size(), TokenId(0)), shape.parents);
      EXPECT_TRUE(
          check_tree(tree,
                     {.nodes = nodes, .depth = depth, .children = kMaxTreeChildren, .equal_siblings = true})
              .ok());
      double expected = 0;
      std::vector<double> reach;
      for (size_t i = 0; i < shape.parents.size(); ++i) {
        const int32_t parent = shape.parents[i];
        const auto rank = static_cast<size_t>(
            std::count(shape.parents.begin(), shape.parents.begin() + static_cast<ptrdiff_t>(i), parent));
        reach.push_back((parent == kTreeRoot ? 1 : reach[static_cast<size_t>(parent)]) * chances[rank]);
        expected += reach.back();
      }
      EXPECT_NEAR(expected, best[static_cast<size_t>(depth)][static_cast<size_t>(nodes)], 1e-12)
          << nodes << " nodes, " << depth << " deep";
    }
  EXPECT_TRUE(RankAcceptance().best_tree(0, 4).is_chain());
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

// Simulates `steps` steps of `sequences` sequences, where trees bring `gain` times the tokens per second of
// chains. Returns the speed of TreeChoice relative to chains alone.
double speed_of_choosing(double gain, uint32_t seed, int steps, int sequences) {
  TreeChoice choice;
  std::mt19937 random(seed);
  double chain_seconds = 0, seconds = 0;
  for (int step = 0; step < steps; ++step)
    for (int sequence = 0; sequence < sequences; ++sequence) {
      const bool branches = choice.branches(static_cast<uint64_t>(step));
      const auto emitted = static_cast<int32_t>(1 + random() % 5);
      const double chain = 0.8 + 0.4 * static_cast<double>(random() % 1000) / 1000;
      const double took = chain / (branches ? gain : 1);
      choice.observe(branches, emitted, took);
      EXPECT_EQ(choice.branches(static_cast<uint64_t>(step)), branches) << "all rounds of a step";
      chain_seconds += chain;
      seconds += took;
    }
  return chain_seconds / seconds;
}

// From 2,000 rounds on: at most 1 % slower than chains, and 1.5 % slower than the better of the two, 3 %
// where that is twice as fast.
TEST(TreeChoice, LosesLittleAgainstTheBetter) {
  for (const auto& [steps, sequences] : {std::pair{2'000, 1}, std::pair{20'000, 1}, std::pair{2'000, 8}})
    for (const double gain : {0.3, 0.5, 0.8, 0.9, 0.95, 0.97, 1.0, 1.03, 1.1, 1.3, 2.0}) {
      constexpr uint32_t kSeeds = 100;
      double speed = 0;
      for (uint32_t seed = 0; seed < kSeeds; ++seed)
        speed += speed_of_choosing(gain, seed, steps, sequences) / kSeeds;
      EXPECT_GT(speed, 0.99) << gain << ", " << steps << " steps of " << sequences;
      EXPECT_GT(speed, (gain < 2 ? 0.985 : 0.97) * gain)
          << gain << ", " << steps << " steps of " << sequences;
    }
}

// Simulates `steps` steps of `sequences` sequences whose draft head can run at the target or at a worker.
// Steps with a worker's draft bring `gain` times the tokens per second. `known`: the policy is given the gain
// beforehand. Returns the speed of HeadPlace relative to drafting at the target.
double speed_of_placing(double gain, bool known, uint32_t seed, int steps, int sequences) {
  HeadPlace place;
  std::mt19937 random(seed);
  double usual_seconds = 0, seconds = 0;
  for (int step = 0; step < steps; ++step) {
    place.decide(known ? 1 / gain : 1);
    constexpr double kRehearsal = 0.3;  // cost of a probe draft, as a share of a step
    const double rehearsal = place.rehearses() ? kRehearsal : 0;
    for (int sequence = 0; sequence < sequences; ++sequence) {
      const auto emitted = static_cast<int32_t>(1 + random() % 5);
      const double usual = 0.8 + 0.4 * static_cast<double>(random() % 1000) / 1000;
      const double took = usual / (place.at_worker() ? gain : 1) + rehearsal;
      place.observe(place.at_worker(), emitted, took);
      usual_seconds += usual;
      seconds += took;
    }
    if (place.rehearses() && random() % 3 == 0) place.heard();
  }
  return usual_seconds / seconds;
}

// At most 1 % slower than the target's place, and 3.5 % slower than the better: a gain of a few hundredths is
// found out slowly.
TEST(HeadPlace, LosesLittleAgainstTheBetter) {
  for (const bool known : {false, true})
    for (const auto& [steps, sequences] : {std::pair{2'000, 1}, std::pair{20'000, 1}, std::pair{2'000, 8}})
      for (const double gain : {0.05, 0.3, 0.5, 0.8, 0.9, 0.95, 0.97, 1.0, 1.03, 1.1, 1.3, 2.0}) {
        constexpr uint32_t kSeeds = 100;
        double speed = 0;
        for (uint32_t seed = 0; seed < kSeeds; ++seed)
          speed += speed_of_placing(gain, known, seed, steps, sequences) / kSeeds;
        // A worker that answers as if it were near, and is not, costs the rounds of one trial.
        EXPECT_GT(speed, gain < 0.1 && !known ? 0.96 : 0.99)
            << gain << ", " << steps << " steps of " << sequences << ", known: " << known;
        EXPECT_GT(speed, 0.965 * gain)
            << gain << ", " << steps << " steps of " << sequences << ", known: " << known;
      }
}

TEST(HeadPlace, WhoDoesNotAnswerIsNotTried) {
  HeadPlace place;
  int64_t rehearsed = 0;
  for (int step = 0; step < 20'000; ++step) {
    place.decide(1);
    rehearsed += place.rehearses();
    place.observe(place.at_worker(), 2, 1.0);
  }
  EXPECT_EQ(place.trials(), 0);
  EXPECT_GT(rehearsed, 500);
  EXPECT_LT(rehearsed, 3'000);
}

// The time that the target drafts for a round lies in the pass before it.
TEST(HeadPlace, CountsADraftWithTheRoundThatHasIt) {
  // A pass takes 1; the target's draft 2, a worker's 1.
  HeadPlace place;
  bool own = false;  // the round under way has the target's draft
  int at_worker = 0;
  for (int step = 0; step < 1'000; ++step) {
    place.decide(1);
    const bool next_own = !place.at_worker();
    place.pass_over(next_own ? 2 : 0);
    place.observe(!own, 2, (own ? 1 : 2) + (next_own ? 2 : 0));
    if (place.rehearses()) place.heard();
    own = next_own;
    at_worker += !own;
  }
  EXPECT_GT(at_worker, 800);
}

}  // namespace
}  // namespace outrider
