#include <gtest/gtest.h>

#include "comm/q_rows.h"
#include "draft_worker/drafter.h"
#include "tests/draft_worker/ids_of.h"

namespace outrider {
namespace {

// Behind `token` the target ranked these best; no others are known.
void add(TokenSuccessors& successors, int token, std::initializer_list<int> best) {
  successors.tokens.emplace_back(token);
  const size_t end = successors.tokens.size() * kSuccessors;
  for (const int id : best) successors.best.emplace_back(id);
  successors.best.resize(end, TokenId(-1));
}

class RecycledText {
 public:
  explicit RecycledText(std::vector<TokenId> prompt, int sequence = 1, Drafter* shared = nullptr,
                        uint64_t salt = 0)
      : own_(make_recycling_drafter({.least_chance = 0.01})),
        drafter_(shared ? *shared : *own_),
        sequence_(sequence),
        length_(static_cast<int32_t>(prompt.size())) {
    const auto size = length_;
    EXPECT_TRUE(drafter_
                    .open({.sequence = sequence_,
                           .ids = std::move(prompt),
                           .prompt_length = size,
                           .sampling = {},
                           .salt = salt})
                    .ok());
  }
  DraftTree draft(const std::vector<TokenId>& committed, const TokenSuccessors& successors, int gamma,
                  const TreeShape& shape = {}, QKind q = QKind::kNone) {
    length_ += static_cast<int32_t>(committed.size());
    EXPECT_TRUE(drafter_
                    .begin({.sequence = sequence_,
                            .round = Round(++round_),
                            .base = Position(length_),
                            .committed = committed,
                            .gamma = gamma,
                            .q_kind = q,
                            .tree = shape,
                            .successors = successors})
                    .ok());
    std::vector<DraftAnswer> answers;
    while (drafter_.work(answers)) continue;
    EXPECT_EQ(answers.size(), 1u);
    const Draft& draft = answers.at(0).draft;
    if (q != QKind::kNone) {
      EXPECT_TRUE(validate_q_rows(draft.q_kind, draft.q, draft.ids, 1000).ok());
    }
    return {draft.ids, draft.parents};
  }
  Drafter& drafter() { return drafter_; }

 private:
  std::unique_ptr<Drafter> own_;
  Drafter& drafter_;
  const SequenceId sequence_;
  int32_t length_;
  uint32_t round_ = 0;
};

TEST(RecyclingDrafter, AChainFollowsWhatWasRankedBest) {
  RecycledText text(ids_of({1, 2}));
  TokenSuccessors rows;
  add(rows, 2, {7, 8});
  add(rows, 7, {9});
  EXPECT_EQ(text.draft({}, rows, 5).ids, ids_of({7, 9}));
  EXPECT_EQ(text.draft({}, {}, 1, {}, QKind::kSparse).ids, ids_of({7})) << "rows stay";
}

TEST(RecyclingDrafter, NewRowsTakeThePlaceOfOldOnesAndServeOtherSequences) {
  RecycledText text(ids_of({1, 2}));
  TokenSuccessors old, news;
  add(old, 2, {7, 8});
  add(news, 2, {5});
  EXPECT_EQ(text.draft({}, old, 1).ids, ids_of({7}));
  EXPECT_EQ(text.draft({}, news, 1).ids, ids_of({5}));
  RecycledText other(ids_of({9, 2}), 2, &text.drafter());
  EXPECT_EQ(other.draft({}, {}, 1).ids, ids_of({5}));
}

TEST(RecyclingDrafter, TextsWithASaltKeepToThemselves) {
  RecycledText text(ids_of({1, 2}));
  TokenSuccessors rows, own;
  add(rows, 2, {7});
  add(own, 3, {8});
  text.draft({}, rows, 1);
  RecycledText salted(ids_of({9, 2}), 2, &text.drafter(), 5);
  EXPECT_TRUE(salted.draft({}, own, 1).ids.empty());
  EXPECT_EQ(salted.draft(ids_of({3}), {}, 1).ids, ids_of({8})) << "its own rows serve it";
  EXPECT_TRUE(salted.draft({}, {}, 2, {.nodes = 2}).ids == ids_of({8}));
  RecycledText other(ids_of({9, 3}), 3, &text.drafter());
  EXPECT_TRUE(other.draft({}, {}, 1).ids.empty());
}

// A pass ranks rows of rejected branches, too; what the text went on with says more.
TEST(RecyclingDrafter, WhatFollowedInTheTextStandsFirst) {
  RecycledText text(ids_of({1, 2}));
  TokenSuccessors rows;
  add(rows, 2, {7, 8});
  text.draft({}, rows, 1);
  EXPECT_EQ(text.draft(ids_of({8, 3, 2}), rows, 1).ids, ids_of({8}));
  TreeShape two{.widths = {2}};
  EXPECT_EQ(text.draft({}, {}, 1, two).ids, ids_of({8, 7}));
  RecycledText prompt(ids_of({4, 5, 6, 4}));
  EXPECT_EQ(prompt.draft({}, {}, 2).ids, ids_of({5, 6})) << "of a prompt, too";
}

TEST(RecyclingDrafter, TreesTakeTheirShape) {
  RecycledText text(ids_of({1, 2}));
  TokenSuccessors rows;
  add(rows, 2, {10, 11, 12});
  add(rows, 10, {20, 21});
  add(rows, 11, {30});
  add(rows, 20, {40});
  EXPECT_EQ(text.draft({}, rows, 2, {.widths = {2, 2}}),
            DraftTree(ids_of({10, 20, 21, 11, 30}), {-1, 0, 0, -1, 3}));
  // The second child of the first one, and a third child that nothing is known to follow.
  EXPECT_EQ(text.draft({}, {}, 3, {.parents = {-1, 0, 0, 1, 2, -1}}),
            DraftTree(ids_of({10, 20, 40, 21, 11}), {-1, 0, 1, 0, -1}));
  const DraftTree best = text.draft({}, {}, 4, {.nodes = 5});
  EXPECT_EQ(best.ids.front(), TokenId(10));
  EXPECT_EQ(best.size(), 5u);
  EXPECT_TRUE(check_tree(best, {.nodes = 5, .depth = 4}).ok());
  EXPECT_LE(text.draft({}, {}, 4, {.nodes = 5, .node_price = 0.2f}).size(), 2u)
      << "the others bring too little";
}

// Behind 2 stand 7 and 8 in turn, so that the second of its row is right each time.
TEST(RecyclingDrafter, LearnsWhichRanksAreRight) {
  RecycledText text(ids_of({2, 7, 2, 8, 2}));
  const TreeShape shape{.nodes = 2, .node_price = 0.3f};
  EXPECT_EQ(text.draft({}, {}, 1, shape).ids, ids_of({8})) << "the second is thought to be right rarely";
  for (int i = 0; i < 60; ++i) text.draft(ids_of({i % 2 == 0 ? 7 : 8, 2}), {}, 1);
  EXPECT_EQ(text.draft({}, {}, 1, shape), DraftTree(ids_of({8, 7}), {-1, -1}));
}

}  // namespace
}  // namespace outrider
