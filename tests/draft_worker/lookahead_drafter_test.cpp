#include <gtest/gtest.h>

#include <map>

#include "draft_worker/drafter.h"

namespace outrider {
namespace {

constexpr int kLookaheadVocab = 97;

// The successor of each token: multiplication by 5 modulo 97, which visits all tokens.
TokenId behind(TokenId token) { return TokenId(token.value() * 5 % kLookaheadVocab); }

// A sequence of a target whose next token depends on the last one alone, and what it is drafted.
class MarkovText {
 public:
  MarkovText(std::vector<TokenId> prompt, LookaheadDrafterOptions options)
      : drafter_(make_lookahead_drafter(options)), last_(prompt.back()) {
    length_ = static_cast<int32_t>(prompt.size());
    const auto size = length_;
    EXPECT_TRUE(
        drafter_
            ->open(
                {.sequence = SequenceId(1), .ids = std::move(prompt), .prompt_length = size, .sampling = {}})
            .ok());
  }
  // Drafts, verifies and goes on: tokens that the draft brought.
  size_t round(const TreeShape& shape, int32_t depth, bool tells_rows = true) {
    EXPECT_TRUE(drafter_
                    ->begin({.sequence = SequenceId(1),
                             .round = Round(++round_),
                             .base = Position(length_),
                             .committed = committed_,
                             .gamma = depth,
                             .tree = shape,
                             .successors = tells_rows ? rows_ : TokenSuccessors{}})
                    .ok());
    std::vector<DraftAnswer> answers;
    while (drafter_->work(answers)) continue;
    EXPECT_EQ(answers.size(), 1u);
    draft_ = DraftTree(answers.at(0).draft.ids, answers.at(0).draft.parents);
    rows_ = {};
    add_row(last_);
    for (const TokenId token : draft_.ids) add_row(token);
    committed_.clear();
    for (int32_t node = child_with(draft_, kTreeRoot, behind(last_)); node != kTreeRoot;
         node = child_with(draft_, node, behind(last_)))
      commit(draft_[static_cast<size_t>(node)]);
    const size_t accepted = committed_.size();
    commit(behind(last_));
    return accepted;
  }
  const DraftTree& draft() const { return draft_; }

 private:
  void commit(TokenId token) {
    committed_.push_back(token);
    last_ = token;
    ++length_;
  }
  void add_row(TokenId token) {
    rows_.tokens.push_back(token);
    rows_.best.push_back(behind(token));
    rows_.best.resize(rows_.tokens.size() * kSuccessors, TokenId(0));
  }

  std::unique_ptr<Drafter> drafter_;
  TokenId last_;
  int32_t length_;
  uint32_t round_ = 0;
  std::vector<TokenId> committed_;
  TokenSuccessors rows_;
  DraftTree draft_;
};

// Tokens that the text comes to after a while, in an order that no n-gram of it has.
std::vector<TokenId> prompt_of_later_tokens() {
  std::vector<TokenId> order{TokenId(1)};
  while (order.size() < 96) order.push_back(behind(order.back()));
  std::vector<TokenId> prompt;
  for (const size_t at : {12, 40, 20, 50, 30, 16, 26, 36}) prompt.push_back(order[at]);
  prompt.push_back(order[0]);
  return prompt;
}

size_t accepted_in(MarkovText text, int rounds, const TreeShape& shape, int32_t depth, bool tells_rows) {
  size_t accepted = 0;
  for (int i = 0; i < rounds; ++i) accepted += text.round(shape, depth, tells_rows);
  return accepted;
}

// The text does not repeat, so only what the window found can be right.
TEST(LookaheadDrafter, TheWindowFindsWhatTheTextComesTo) {
  const TreeShape shape{.nodes = 48};
  const auto text = [](int32_t ngram) {
    return MarkovText(prompt_of_later_tokens(), LookaheadDrafterOptions{.ngram = ngram});
  };
  const size_t with_rows = accepted_in(text(4), 30, shape, 48, true);
  EXPECT_GT(with_rows, 20u);
  EXPECT_LE(accepted_in(text(4), 30, shape, 48, false), 1u) << "a token of the window, by luck";
  EXPECT_GT(accepted_in(text(2), 30, shape, 48, true), 0u) << "of two tokens, the shortest";
}

TEST(LookaheadDrafter, TreesAreAsWelcomeAsTheirShape) {
  for (const int32_t nodes : {1, 2, 5, 16, 24, 64})
    for (const int32_t depth : {1, 2, 3, 7, nodes})
      for (const int32_t ngram : {2, 4, 8}) {
        MarkovText text(prompt_of_later_tokens(), {.ngram = ngram});
        for (int i = 0; i < 40; ++i) {
          text.round({.nodes = nodes}, depth);
          const TreeLimits limits{.nodes = nodes, .depth = depth, .children = kMaxTreeChildren};
          ASSERT_TRUE(check_tree(text.draft(), limits).ok()) << nodes << " " << depth << " " << ngram;
        }
      }
  MarkovText text(prompt_of_later_tokens(), {});
  text.round({.widths = {3, 2, 2, 1}}, 4);
  EXPECT_FALSE(text.draft().empty());
  EXPECT_TRUE(check_tree(text.draft(), {.nodes = 33, .depth = 4, .children = kMaxTreeChildren}).ok());
}

// Row i of level j stands i + j tokens behind the text, as in figure 5 of the paper.
TEST(LookaheadDrafter, EveryPositionOfTheWindowHasABranch) {
  MarkovText text(prompt_of_later_tokens(), {.ngram = 4});
  for (int i = 0; i < 3; ++i) text.round({.nodes = 24}, 24);
  // Four positions: a chain of the first level, and two further levels behind each.
  const DraftTree& tree = text.draft();
  std::vector<int32_t> depths;
  tree_depths(tree, depths);
  std::map<int32_t, int> of_depth;
  for (const int32_t depth : depths) ++of_depth[depth];
  EXPECT_EQ(tree.size(), 12u) << "nothing is known to follow the text, so there are no guesses";
  EXPECT_EQ(of_depth, (std::map<int32_t, int>{{1, 1}, {2, 2}, {3, 3}, {4, 3}, {5, 2}, {6, 1}}));
  for (size_t node = 0; node < tree.size(); ++node)
    if (depths[node] == 6) {
      const auto parent = static_cast<size_t>(tree.parents[node]);
      EXPECT_EQ(tree.ids[node], behind(tree.ids[parent])) << "levels are what the target ranked best";
    }
}

TEST(LookaheadDrafter, ChainsAreNgramsOfTheText) {
  std::vector<TokenId> prompt;
  for (const int id : {5, 6, 7, 8, 9, 5}) prompt.emplace_back(id);
  MarkovText text(prompt, {.ngram = 4});
  text.round({}, 8);
  EXPECT_EQ(text.draft(), (DraftTree{TokenId(6), TokenId(7), TokenId(8)}));
}

}  // namespace
}  // namespace outrider
