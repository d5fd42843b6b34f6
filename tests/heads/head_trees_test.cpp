// Trees of draft heads: the draft after a node depends on the text and the path to the node, not on the rest
// of the tree and not on the other sequences of the forward pass.
#include <gtest/gtest.h>

#include <map>

#include "base/draft_tree.h"
#include "base/hash.h"
#include "heads/head_drafter.h"
#include "tests/heads/golden_heads.h"

namespace outrider {
namespace {

class HashedStates final : public HiddenStateSource {
 public:
  explicit HashedStates(Head& head) : head_(head) {}
  void read(SequenceId, int64_t first, FloatRows to) override {
    const FloatRows written = head_.compute().open(to);
    for (int64_t r = 0; r < to.extent(0); ++r)
      for (int64_t i = 0; i < to.extent(1); ++i)
        written.row(r)[static_cast<size_t>(i)] =
            static_cast<float>(hash_combine(static_cast<uint64_t>(first + r), static_cast<uint64_t>(i)) %
                               2001) /
                500 -
            2;
    head_.compute().close(to);
  }

 private:
  Head& head_;
};

std::vector<TokenId> text(size_t count) {
  std::vector<TokenId> ids;
  for (size_t i = 0; i < count; ++i) ids.emplace_back(static_cast<int32_t>(i * 53 % 302));
  return ids;
}

struct TreeDrafting {
  explicit TreeDrafting(const testing::GoldenHead& kind, int64_t tree_nodes = 64, int64_t max_rows = 256)
      : head(testing::load_head_or_die(kind, {.max_rows = max_rows,
                                              .max_sequences = 3,
                                              .max_positions = 120,
                                              .kv_tokens = 3 * 160,
                                              .tree_nodes = tree_nodes})),
        drafter(make_head_drafter(*head, {.max_sequences = 3})),
        hidden_states(*head) {}

  HeadDraft one(std::span<const TokenId> committed, const SamplingParams& sampling, int32_t gamma,
                const TreeShape& shape, SequenceId id = SequenceId(1)) {
    const HeadTask task{.sequence = id,
                        .committed = committed,
                        .sampling = &sampling,
                        .round = Round(1),
                        .gamma = gamma,
                        .tree = &shape};
    std::vector<HeadDraft> drafts;
    drafter->draft({&task, 1}, hidden_states, drafts);
    return drafts.front();
  }

  std::unique_ptr<Head> head;
  std::unique_ptr<HeadDrafter> drafter;
  HashedStates hidden_states;
};

SamplingParams sampling_of(Rule rule) {
  return {.rule = rule, .temperature = rule == Rule::kGreedy ? 0.0f : 1.2f, .seed = Seed{9}};
}

// The tokens of each path from the root, by node.
std::vector<std::vector<TokenId>> paths(const HeadDraft& draft) {
  std::vector<std::vector<TokenId>> all;
  const DraftTreeView tree(draft.ids, draft.parents);
  std::vector<int32_t> nodes;
  for (int32_t i = 0; i < tree.size(); ++i) {
    path_to(tree, i, nodes);
    auto& path = all.emplace_back();
    for (const int32_t node : nodes) path.push_back(tree.id(node));
  }
  return all;
}

class TreesOfHeads : public testing::TestOfAnyHead {};

TEST_P(TreesOfHeads, BestChildrenAreTheChain) {
  for (const Rule rule : {Rule::kGreedy, Rule::kInvariant}) {
    TreeDrafting drafting(GetParam());
    const auto committed = text(17);
    const auto sampling = sampling_of(rule);
    const auto chain = drafting.one(committed, sampling, 3, {});
    EXPECT_TRUE(chain.parents.empty());
    ASSERT_FALSE(chain.ids.empty());
    EXPECT_EQ(drafting.one(committed, sampling, 3, {.widths = {1, 1, 1}}).ids, chain.ids);
    const auto tree = drafting.one(committed, sampling, 3, {.widths = {3, 2, 2}});
    ASSERT_TRUE(check_tree({tree.ids, tree.parents}, {.depth = 3, .children = 3}).ok());
    // Depth first, the best child first.
    EXPECT_TRUE(std::equal(chain.ids.begin(), chain.ids.end(), tree.ids.begin()));
    const size_t depth = chain.ids.size();
    EXPECT_EQ(tree.ids.size(), depth == 3 ? 3u + 6u + 12u : depth == 2 ? 9u : 3u);
    // A smaller tree is a part of a larger one.
    const auto all = paths(tree);
    for (const auto& path : paths(drafting.one(committed, sampling, 3, {.widths = {2, 1, 2}})))
      EXPECT_NE(std::find(all.begin(), all.end(), path), all.end());
    const auto best = drafting.one(committed, sampling, 3, {.widths = {}, .nodes = 7});
    EXPECT_EQ(best.ids.size(), 7u);
    EXPECT_TRUE(check_tree({best.ids, best.parents}, {.depth = 3}).ok());
  }
}

TEST_P(TreesOfHeads, DependOnNoOtherSequenceAndNoRoom) {
  const TreeShape shape{.widths = {3, 2, 2}};
  TreeDrafting together(GetParam()), crowded(GetParam(), 64, 5);
  std::vector<std::vector<TokenId>> texts{text(40), text(3), text(21)};
  const auto sampling = sampling_of(Rule::kInvariant);
  const TreeShape chain;
  for (TreeDrafting* drafting : {&together, &crowded}) {
    std::vector<HeadTask> tasks;
    for (size_t i = 0; i < texts.size(); ++i)
      tasks.push_back({.sequence = SequenceId(i),
                       .committed = texts[i],
                       .sampling = &sampling,
                       .round = Round(1),
                       .gamma = 3,
                       .tree = i == 1 ? &chain : &shape});
    std::vector<HeadDraft> drafts;
    drafting->drafter->draft(tasks, drafting->hidden_states, drafts);
    for (size_t i = 0; i < texts.size(); ++i) {
      TreeDrafting alone(GetParam());
      const auto expected = alone.one(texts[i], sampling, 3, *tasks[i].tree);
      EXPECT_EQ(drafts[i].ids, expected.ids) << i;
      EXPECT_EQ(drafts[i].parents, expected.parents) << i;
    }
  }
}

// After a tree whose path was taken, and after one that was not.
TEST_P(TreesOfHeads, AfterVerdictsAreThoseOfAFreshOne) {
  TreeDrafting running(GetParam());
  const TreeShape shape{.widths = {2, 2}};
  const auto sampling = sampling_of(Rule::kGreedy);
  auto committed = text(9);
  while (committed.size() < 90) {
    const auto draft = running.one(committed, sampling, 4, shape);
    TreeDrafting fresh(GetParam());
    const auto expected = fresh.one(committed, sampling, 4, shape);
    EXPECT_EQ(draft.ids, expected.ids);
    EXPECT_EQ(draft.parents, expected.parents);
    const auto taken = paths(draft)[committed.size() % draft.ids.size()];
    if (committed.size() % 3 > 0) committed.insert(committed.end(), taken.begin(), taken.end());
    committed.emplace_back(static_cast<int32_t>(committed.size() * 7 % 302));
  }
  running.drafter->close(SequenceId(1));
  if (auto* const pairs = dynamic_cast<PairHead*>(running.head.get())) {
    EXPECT_EQ(pairs->kv().free_blocks(), pairs->kv().num_blocks());
    EXPECT_TRUE(pairs->kv().check_invariants().ok());
  }
}

// Where few blocks are left for nodes, a tree is what grew until then.
TEST_P(TreesOfHeads, EndWhereTheRoomDoes) {
  TreeDrafting drafting(GetParam(), 1);
  const auto committed = text(16);
  const auto draft = drafting.one(committed, sampling_of(Rule::kGreedy), 4, {.widths = {3, 2, 2, 1}});
  EXPECT_GE(draft.ids.size(), 3u);
  EXPECT_TRUE(check_tree({draft.ids, draft.parents}, {.depth = 4}).ok());
  drafting.drafter->close(SequenceId(1));
  if (auto* const pairs = dynamic_cast<PairHead*>(drafting.head.get())) {
    EXPECT_EQ(pairs->kv().free_blocks(), pairs->kv().num_blocks());
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, TreesOfHeads, ::testing::ValuesIn(testing::kGoldenHeads),
                         testing::head_test_name);
INSTANTIATE_TEST_SUITE_P(OfTheHost, TreesOfHeads, ::testing::ValuesIn(testing::kHeadsOfTheHost),
                         testing::head_test_name);

}  // namespace
}  // namespace outrider
