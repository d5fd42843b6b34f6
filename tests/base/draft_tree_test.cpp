#include "base/draft_tree.h"

#include <gtest/gtest.h>

#include <random>

namespace outrider {
namespace {

std::vector<TokenId> ids(std::initializer_list<int32_t> values) {
  std::vector<TokenId> out;
  for (const int32_t value : values) out.emplace_back(value);
  return out;
}

std::string fault(const DraftTree& tree, const TreeLimits& limits = {}) {
  return check_tree(tree, limits).message();
}

// 7 ( 8 ( 9 ), 5 ), 8
const DraftTree kTree(ids({7, 8, 9, 5, 8}), {-1, 0, 1, 0, -1});

TEST(DraftTree, KnowsWhereNodesStand) {
  EXPECT_TRUE(check_tree(kTree, {.nodes = 5, .depth = 3, .children = 2}).ok());
  std::vector<int32_t> depths, path;
  tree_depths(kTree, depths);
  EXPECT_EQ(depths, (std::vector<int32_t>{1, 2, 3, 2, 1}));
  EXPECT_EQ(tree_depth(kTree), 3);
  path_to(kTree, 2, path);
  EXPECT_EQ(path, (std::vector<int32_t>{0, 1, 2}));
  path_to(kTree, kTreeRoot, path);
  EXPECT_TRUE(path.empty());
  EXPECT_EQ(child_with(kTree, kTreeRoot, TokenId(8)), 4);
  EXPECT_EQ(child_with(kTree, 0, TokenId(8)), 1);
  EXPECT_EQ(child_with(kTree, 4, TokenId(8)), kTreeRoot);
}

TEST(DraftTree, TellsPathsFromOtherNodes) {
  const auto is = [](std::vector<int32_t> nodes) { return is_path(kTree, nodes); };
  EXPECT_TRUE(is({}));
  EXPECT_TRUE(is({0, 1, 2}));
  EXPECT_TRUE(is({4}));
  EXPECT_FALSE(is({1}));
  EXPECT_FALSE(is({0, 2}));
  EXPECT_FALSE(is({4, 0}));
  EXPECT_FALSE(is({5}));
  EXPECT_FALSE(is({-1}));
}

TEST(DraftTree, CountsTestedLevels) {
  const auto tested = [](std::vector<int32_t> path) { return levels_tested(kTree, path); };
  EXPECT_EQ(tested({}), 1);
  EXPECT_EQ(tested({4}), 1) << "a leaf tests nothing behind itself";
  EXPECT_EQ(tested({0}), 2);
  EXPECT_EQ(tested({0, 1, 2}), 3);
  EXPECT_EQ(levels_tested(DraftTree(), {}), 0);
  EXPECT_EQ(levels_tested(DraftTree(ids({1, 2})), std::vector<int32_t>{0}), 2);
}

TEST(DraftTree, RefusesWhatIsNoTree) {
  EXPECT_NE(fault({ids({1, 2}), {-1}}), "") << "a parent is missing";
  EXPECT_NE(fault({ids({1, 2}), {0, -1}}), "") << "its own parent";
  EXPECT_NE(fault({ids({1, 2}), {1, 0}}), "") << "a cycle, so a parent comes later";
  EXPECT_NE(fault({ids({1, 2}), {-1, 2}}), "") << "no such node";
  EXPECT_NE(fault({ids({1, 2}), {-1, -2}}), "");
  EXPECT_NE(fault({ids({1, 2}), {-1, std::numeric_limits<int32_t>::min()}}), "");
  EXPECT_NE(fault({ids({1, 1}), {-1, -1}}), "") << "a token twice";
  EXPECT_EQ(fault({ids({1, 1}), {-1, 0}}), "") << "the same token behind itself is another text";
}

TEST(DraftTree, KeepsToLimits) {
  EXPECT_NE(fault(kTree, {.nodes = 4}), "");
  EXPECT_NE(fault(kTree, {.depth = 2}), "");
  EXPECT_NE(fault(kTree, {.children = 1}), "");
  const DraftTree chain(ids({1, 2, 3}));
  EXPECT_EQ(fault(chain, {.nodes = 3, .depth = 3, .children = 1}), "");
  EXPECT_NE(fault(chain, {.nodes = 2}), "");
  EXPECT_NE(fault(chain, {.depth = 2}), "");
}

TEST(DraftTree, PutsChildrenBehindTheirParents) {
  // By levels: 1 and 2, behind them 3, 4 and 5, behind 4 6.
  const DraftTree levels(ids({1, 2, 3, 4, 5, 6}), {-1, -1, 0, 1, 0, 3});
  const DraftTree expected(ids({1, 3, 5, 2, 4, 6}), {-1, 0, 0, -1, 3, 4});
  EXPECT_EQ(depth_first(levels), expected);
  EXPECT_EQ(depth_first(expected), expected);
  EXPECT_EQ(depth_first(kTree), kTree);
  EXPECT_TRUE(depth_first(DraftTree()).empty());
}

TEST(DraftTree, AChainNeedsNoParents) {
  DraftTree tree(ids({4, 4, 4}), {-1, 0, 1});
  shorten_chain(tree);
  EXPECT_TRUE(tree.is_chain());
  EXPECT_EQ(DraftTreeView(tree).parent(2), 1);
  DraftTree branched(ids({4, 5}), {-1, -1});
  shorten_chain(branched);
  EXPECT_FALSE(branched.is_chain());
}

// The check lets no list of numbers through on which the other functions would leave the tree.
TEST(DraftTree, WhatPassesIsSafe) {
  std::mt19937 random(5);
  int passed = 0;
  for (int repeat = 0; repeat < 20000; ++repeat) {
    DraftTree tree;
    const size_t nodes = random() % 6;
    for (size_t i = 0; i < nodes; ++i) {
      tree.ids.emplace_back(static_cast<int32_t>(random() % 4));
      tree.parents.push_back(static_cast<int32_t>(random() % 8) - 2);
    }
    if (!check_tree(tree, {.depth = 4}).ok()) continue;
    ++passed;
    std::vector<int32_t> path;
    for (int32_t i = 0; i < static_cast<int32_t>(nodes); ++i) {
      path_to(tree, i, path);
      ASSERT_TRUE(is_path(tree, path));
      ASSERT_LE(path.size(), 4u);
      ASSERT_EQ(child_with(tree, DraftTreeView(tree).parent(i), tree[static_cast<size_t>(i)]), i);
    }
  }
  EXPECT_GT(passed, 1000);
}

TEST(DraftTree, RowsAreNumberedByParents) {
  // 0 ( 1, 2 ( 3 ) ), 4
  const DraftTree tree(std::vector<TokenId>(5, TokenId(1)), {-1, 0, 0, 2, -1});
  const RowNumbers numbers(tree);
  ASSERT_EQ(numbers.size(), 3u) << "of the root, of 0 and of 2";
  const size_t of[] = {0, 1, 1, 2, 0};
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(numbers.of(i), of[i]) << i;
  const DraftTree chain{TokenId(1), TokenId(2)};
  EXPECT_EQ(RowNumbers(chain).size(), 2u);
  EXPECT_EQ(RowNumbers(chain).of(1), 1u);
  EXPECT_EQ(RowNumbers(DraftTree()).size(), 0u);
}

TEST(DraftTree, DepthFirstTellsWhereNodesCameFrom) {
  const DraftTree tree({TokenId(1), TokenId(2), TokenId(3), TokenId(4)}, {-1, -1, 0, 1});
  std::vector<int32_t> order{9};
  const DraftTree out = depth_first(tree, &order);
  EXPECT_EQ(order, (std::vector<int32_t>{0, 2, 1, 3}));
  for (size_t i = 0; i < order.size(); ++i) EXPECT_EQ(out[i], tree[static_cast<size_t>(order[i])]);
}

TEST(DraftTree, SiblingsAreEqualOnlyWhereTheyMayBe) {
  const DraftTree twice({TokenId(1), TokenId(1)}, {-1, -1});
  EXPECT_FALSE(check_tree(twice, {}).ok());
  EXPECT_TRUE(check_tree(twice, {.equal_siblings = true}).ok());
}

}  // namespace
}  // namespace outrider
