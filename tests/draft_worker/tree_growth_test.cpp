#include "heads/tree_growth.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "heads/token_guesses.h"
#include "kernels/sampling/gumbel.h"
#include "kernels/sampling/row_kernels.h"
#include "tests/support/source_dir.h"

namespace outrider {
namespace {

using Path = std::vector<TokenId>;

// A draft model of which every context has a few best tokens with scores that follow from it.
std::vector<RankedToken> best_behind(const Path& path, size_t count, float spread = 1) {
  uint32_t seed = 17;
  for (const TokenId id : path) seed = seed * 31 + static_cast<uint32_t>(id.value());
  std::mt19937 random(seed);
  std::vector<RankedToken> best;
  float score = 10;
  for (size_t i = 0; i < count; ++i) {
    best.push_back(RankedToken::of(score, static_cast<int64_t>(10 * i + random() % 10)));
    score -= spread * static_cast<float>(random() % 1000) / 500;
  }
  return best;
}

// As a drafter would: passes of at most `most` nodes.
int grow(TreeGrowth& growth, const BranchConfidence& confidence, size_t most, float spread = 1) {
  int passes = 0;
  Path path;
  while (true) {
    const auto nodes = growth.next(most);
    if (nodes.empty()) return passes;
    EXPECT_LE(nodes.size(), most);
    ++passes;
    for (const int32_t node : std::vector<int32_t>(nodes.begin(), nodes.end())) {
      growth.path(node, path);
      growth.add(node, best_behind(path, growth.wanted(node), spread), confidence);
    }
  }
}

std::map<Path, int> paths_of(const DraftTree& tree) {
  std::map<Path, int> out;
  std::vector<int32_t> nodes;
  for (int32_t i = 0; i < static_cast<int32_t>(tree.size()); ++i) {
    path_to(tree, i, nodes);
    Path path;
    for (const int32_t node : nodes) path.push_back(tree[static_cast<size_t>(node)]);
    ++out[path];
  }
  return out;
}

TEST(TreeGrowth, FixedShapesHaveTheBestFewBehindEveryNode) {
  TreeGrowth growth;
  growth.begin({.widths = {3, 2, 1}}, 9);
  EXPECT_EQ(grow(growth, {}, 100), 3) << "one pass a level";
  const DraftTree tree = growth.take();
  EXPECT_EQ(tree.size(), 3u + 6 + 6);
  EXPECT_TRUE(check_tree(tree, {.nodes = 15, .depth = 3, .children = 3}).ok());
  const auto paths = paths_of(tree);
  for (const RankedToken first : best_behind({}, 3)) {
    EXPECT_TRUE(paths.contains({first.id()}));
    for (const RankedToken second : best_behind({first.id()}, 2))
      EXPECT_TRUE(
          paths.contains({first.id(), second.id(), best_behind({first.id(), second.id()}, 1)[0].id()}));
  }
  EXPECT_EQ(depth_first(tree), tree);

  growth.begin({.widths = {3, 2, 1}}, 2);
  grow(growth, {}, 100);
  EXPECT_EQ(tree_depth(growth.take()), 2) << "no deeper than asked for";
}

TEST(TreeGrowth, SmallPassesGiveTheSameTree) {
  for (const TreeShape& shape : {TreeShape{.widths = {4, 2, 2}}, TreeShape{.widths = {}, .nodes = 9}}) {
    TreeGrowth at_once, one_by_one;
    at_once.begin(shape, 5);
    one_by_one.begin(shape, 5);
    grow(at_once, {}, 100);
    grow(one_by_one, {}, 1);
    EXPECT_EQ(at_once.take(), one_by_one.take());
  }
}

// All nodes to some depth, by the chance of their path.
std::vector<std::pair<double, Path>> by_reach(const BranchConfidence& confidence, int32_t depth) {
  std::vector<std::pair<double, Path>> all, level{{1.0, {}}};
  std::vector<double> shares;
  for (int32_t d = 0; d < depth; ++d) {
    std::vector<std::pair<double, Path>> next;
    for (const auto& [reach, path] : level) {
      const auto best = best_behind(path, 4);
      std::vector<float> scores;
      for (const RankedToken token : best) scores.push_back(token.value());
      confidence.shares(scores, shares);
      for (size_t i = 0; i < best.size(); ++i) {
        next.emplace_back(reach * shares[i], path);
        next.back().second.push_back(best[i].id());
      }
    }
    all.insert(all.end(), next.begin(), next.end());
    level.swap(next);
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  return all;
}

TEST(TreeGrowth, BestFirstHasTheLikeliestNodes) {
  const BranchConfidence confidence;
  const auto all = by_reach(confidence, 5);
  for (int32_t nodes = 1; nodes <= 24; ++nodes) {
    TreeGrowth growth;
    growth.begin({.widths = {}, .nodes = nodes}, 5);
    grow(growth, confidence, 100);
    const DraftTree tree = growth.take();
    ASSERT_EQ(tree.size(), static_cast<size_t>(nodes));
    const auto paths = paths_of(tree);
    double sum = 0, most = 0;
    for (int32_t i = 0; i < nodes; ++i) most += all[static_cast<size_t>(i)].first;
    for (const auto& [reach, path] : all)
      if (paths.contains(path)) sum += reach;
    // The last passes may be left out where they would hardly bring more.
    EXPECT_GE(sum, 0.97 * most) << nodes;
  }
}

TEST(TreeGrowth, WithoutDoubtItIsAChain) {
  TreeGrowth growth;
  growth.begin({.widths = {}, .nodes = 6}, 6);
  EXPECT_EQ(grow(growth, {}, 100, 100), 6);
  EXPECT_TRUE(growth.take().is_chain());
  EXPECT_EQ(growth.take().size(), 6u);
}

TEST(TreeGrowth, PricesEndIt) {
  TreeGrowth growth;
  growth.begin({.widths = {}, .nodes = 60, .node_price = 0.2f}, 10);
  grow(growth, {}, 100);
  const auto paths = paths_of(growth.take());
  size_t worth = 0;
  for (const auto& [reach, path] : by_reach({}, 6)) {
    worth += reach >= 0.2;
    EXPECT_EQ(paths.contains(path), reach >= 0.2 || worth == 0) << reach;
  }
  EXPECT_EQ(paths.size(), worth);

  growth.begin({.widths = {}, .nodes = 60, .node_price = 2, .pass_price = 2}, 10);
  EXPECT_EQ(grow(growth, {}, 100), 1);
  EXPECT_EQ(growth.take().size(), 1u) << "the first token was asked for";
}

TEST(TreeGrowth, NothingGrowsBehindAnEnd) {
  TreeGrowth growth;
  growth.begin({.widths = {2, 2}}, 2);
  ASSERT_EQ(growth.next(9)[0], kTreeRoot);
  growth.add(kTreeRoot, best_behind({}, 2), {});
  growth.end_at(0);
  ASSERT_EQ(growth.next(9).size(), 1u);
  EXPECT_EQ(growth.next(9)[0], 1);
  growth.stop();
  EXPECT_TRUE(growth.next(9).empty());
  EXPECT_EQ(growth.take().size(), 2u) << "what was found stays";
}

TEST(BranchConfidence, LearnsHowFarModelsLieApart) {
  for (const double truth : {0.15, 0.75, 3.8}) {
    BranchConfidence confidence;
    std::mt19937 random(2);
    std::vector<double> shares;
    for (int i = 0; i < 4000; ++i) {
      const auto best = best_behind({TokenId(i)}, 4, 2);
      std::vector<float> scores;
      std::vector<double> weights;
      for (const RankedToken token : best) {
        scores.push_back(token.value());
        weights.push_back(std::exp(static_cast<double>(scores.back() - scores.front()) / truth));
      }
      weights.push_back(weights.back());
      confidence.observe(
          scores, static_cast<size_t>(std::discrete_distribution<>(weights.begin(), weights.end())(random)));
      confidence.shares(scores, shares);
      double sum = 0;
      for (const double share : shares) sum += share;
      ASSERT_LE(sum, 1 + 1e-9);
    }
    EXPECT_DOUBLE_EQ(confidence.temperature(), truth);
  }
}

TEST(TreeGrowth, LearnsFromTheTextThatFollowed) {
  BranchConfidence confidence;
  const double before = confidence.temperature();
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {  // the best child is always right
    TreeGrowth growth;
    growth.begin({.widths = {}, .nodes = 12}, 3);
    grow(growth, confidence, 100);
    Path text;
    for (int d = 0; d < 3; ++d) text.push_back(best_behind(text, 1)[0].id());
    growth.observe(text, confidence);
  }
  EXPECT_LT(confidence.temperature(), before);
}

// The rule itself: children are the k best of log q + noise, and the target's token is the best of log p +
// the same noise. What of the targets' tokens is among them, against its closed form.
TEST(SharedNoise, AcceptanceIsThatOfTheClosedForm) {
  std::ifstream file(source_dir() / "tests/vectors/tree_acceptance.json");
  ASSERT_TRUE(file);
  constexpr int kDraws = 40'000;
  TokenGuesser guesser;
  for (const auto& test : nlohmann::json::parse(file)["cases"]) {
    const std::vector<double> p = test["p"], q = test["q"];
    std::vector<float> log_p, log_q;
    for (const double x : p) log_p.push_back(static_cast<float>(std::log(x)));
    for (const double x : q) log_q.push_back(static_cast<float>(std::log(x)));
    const Chunks chunks{{0, static_cast<int64_t>(p.size())}};
    std::vector<float> chunk_max(static_cast<size_t>(chunks.count()));
    scale_and_scan(log_p, chunks, 1.0f, chunk_max);
    const SamplingParams params{.rule = Rule::kInvariant, .temperature = 1, .seed = Seed{p.size()}};
    std::vector<int> accepted(5);
    for (int i = 0; i < kDraws; ++i) {
      const TokenId target = gumbel_argmax(log_p, chunks, chunk_max, params.seed, Position(i)).id();
      const auto best = guesser.best(log_q, params, Position(i), 4);
      for (size_t k = 0; k < best.size(); ++k)
        if (best[k].id() == target)
          for (size_t wide = k + 1; wide <= 4; ++wide) ++accepted[wide];
    }
    for (int k = 1; k <= 4; ++k) {
      const double expected = test["acceptance"][std::to_string(k)];
      const double error = std::sqrt(std::max(expected * (1 - expected), 1e-5) / kDraws);
      EXPECT_NEAR(accepted[static_cast<size_t>(k)] / double{kDraws}, expected, 4 * error + 2e-5)
          << p.size() << " tokens, " << k << " children";
    }
  }
}

}  // namespace
}  // namespace outrider
