#include <gtest/gtest.h>

#include "comm/q_rows.h"
#include "draft_worker/drafter.h"
#include "draft_worker/text/suffix_votes.h"
#include "tests/draft_worker/ids_of.h"

namespace outrider {
namespace {

class Text {
 public:
  Text(Drafter& drafter, int sequence, std::vector<TokenId> prompt, uint64_t salt = 0)
      : drafter_(drafter), sequence_(sequence), length_(static_cast<int32_t>(prompt.size())) {
    const auto size = length_;
    EXPECT_TRUE(drafter_
                    .open({.sequence = sequence_,
                           .ids = std::move(prompt),
                           .prompt_length = size,
                           .sampling = {},
                           .salt = salt})
                    .ok());
  }
  ~Text() { drafter_.close(sequence_); }

  // The draft after these tokens are committed.
  std::vector<TokenId> draft(const std::vector<TokenId>& committed, int gamma, QKind q = QKind::kNone) {
    return tree(committed, gamma, {}, q).ids;
  }
  DraftTree tree(const std::vector<TokenId>& committed, int gamma, const TreeShape& shape,
                 QKind q = QKind::kNone) {
    length_ += static_cast<int32_t>(committed.size());
    EXPECT_TRUE(drafter_
                    .begin({.sequence = sequence_,
                            .round = Round(++round_),
                            .base = Position(length_),
                            .committed = committed,
                            .gamma = gamma,
                            .q_kind = q,
                            .tree = shape})
                    .ok());
    std::vector<DraftAnswer> answers;
    while (drafter_.work(answers)) continue;
    EXPECT_EQ(answers.size(), 1u);
    if (q != QKind::kNone) {
      EXPECT_TRUE(
          validate_q_rows(answers[0].draft.q_kind, answers[0].draft.q, answers[0].draft.ids, 1000).ok());
    }
    return {answers[0].draft.ids, answers[0].draft.parents};
  }

 private:
  Drafter& drafter_;
  const SequenceId sequence_;
  int32_t length_;
  uint32_t round_ = 0;
};

TEST(SuffixDrafter, ContinuesItsOwnTextByVote) {
  const auto drafter = make_suffix_drafter({});
  // After "1 2" twice came 3 4, and once, most recently, 9.
  Text text(*drafter, 1, ids_of({1, 2, 3, 4, 50, 1, 2, 3, 4, 51, 1, 2, 9, 60, 1, 2}));
  EXPECT_EQ(text.draft({}, 2, QKind::kDense), ids_of({3, 4}));
}

TEST(SuffixDrafter, PrefersTheLongerMatch) {
  const auto drafter = make_suffix_drafter({});
  Text text(*drafter, 1, ids_of({5, 1, 2, 3, 6, 1, 2, 9, 7, 1, 2, 9, 5, 1, 2}));
  const auto draft = text.draft({}, 1);
  EXPECT_EQ(draft, ids_of({3})) << "of the place where 5 stood in front as well";
}

TEST(SuffixDrafter, FindsWhatOtherTextsSaid) {
  const auto drafter = make_suffix_drafter({});
  {
    Text first(*drafter, 1, ids_of({1, 2, 3}));
    EXPECT_TRUE(first.draft({}, 4).empty()) << "nothing is known yet";
    first.draft(ids_of({10, 11, 12, 13}), 0);
  }
  Text second(*drafter, 2, ids_of({90, 10, 11}));
  EXPECT_EQ(second.draft({}, 2), ids_of({12, 13}));
  // Prompts are not outputs.
  Text third(*drafter, 3, ids_of({91, 1, 2}));
  EXPECT_TRUE(third.draft({}, 2).empty());
}

TEST(SuffixDrafter, WithoutAHistoryTextsKeepToThemselves) {
  const auto drafter = make_suffix_drafter({.history_tokens = 0});
  { Text(*drafter, 1, ids_of({1})).draft(ids_of({10, 11, 12, 13}), 0); }
  Text second(*drafter, 2, ids_of({90, 10, 11}));
  EXPECT_TRUE(second.draft({}, 2).empty());
}

// Without salts, the speed of a text would reveal that another client sent the same text, because shared
// suffixes make drafts more accurate.
TEST(SuffixDrafter, TextsWithASaltKeepToThemselves) {
  const auto drafter = make_suffix_drafter({});
  { Text(*drafter, 1, ids_of({1}), 7).draft(ids_of({10, 11, 12, 13}), 0); }
  Text second(*drafter, 2, ids_of({90, 10, 11}));
  EXPECT_TRUE(second.draft({}, 2).empty());
  { Text(*drafter, 3, ids_of({1})).draft(ids_of({20, 21, 22, 23}), 0); }
  Text third(*drafter, 4, ids_of({90, 20, 21}), 7);
  EXPECT_TRUE(third.draft({}, 2).empty());
  EXPECT_EQ(third.draft(ids_of({5, 6, 7, 5, 6}), 1), ids_of({7})) << "its own text serves it";
}

TEST(SuffixDrafter, DraftsLongerWhereItWasRightAndStopsWhereItNeverIs) {
  const auto drafter = make_suffix_drafter({});
  // A text that repeats itself: every draft is right.
  Text good(*drafter, 1, ids_of({1, 2, 3, 4, 5, 6, 7, 8, 1}));
  std::vector<TokenId> draft = good.draft({}, 16);
  const size_t first = draft.size();
  EXPECT_LE(first, 4u) << "half of them are taken to be right before anything is known";
  for (int round = 0, at = 1; round < 60; ++round) {
    std::vector<TokenId> next;
    for (size_t i = 0; i < std::max<size_t>(draft.size(), 1); ++i) next.emplace_back(1 + at++ % 8);
    draft = good.draft(next, 16);
  }
  EXPECT_EQ(draft.size(), 16u);

  // Alike so far as to be found, and always different behind it.
  const auto hopeless = make_suffix_drafter({});
  Text bad(*hopeless, 2, ids_of({1, 100, 1}));
  size_t drafted = 0;
  for (int round = 0; round < 100; ++round)
    drafted += round < 50 ? (bad.draft(ids_of({101 + round, 1}), 8), 0)
                          : bad.draft(ids_of({101 + round, 1}), 8).size();
  EXPECT_EQ(drafted, 0u);
}

// A text that was always right so far, at the prices of a Propose.
TEST(SuffixDrafter, EndsADraftWhereItsRowsStopPaying) {
  const auto drafter = make_suffix_drafter({});
  std::vector<TokenId> text;
  int at = 0;
  const auto next = [&] { return TokenId(1 + at++ % 70); };
  for (int i = 0; i < 150; ++i) text.push_back(next());
  const SequenceId sequence(1);
  const auto length = static_cast<int32_t>(text.size());
  ASSERT_TRUE(
      drafter->open({.sequence = sequence, .ids = text, .prompt_length = length, .sampling = {}}).ok());
  int32_t base = length;
  uint32_t round = 0;
  const auto drafted = [&](int64_t pass_ns, int64_t row_ns, std::vector<TokenId> committed) {
    base += static_cast<int32_t>(committed.size());
    EXPECT_TRUE(drafter
                    ->begin({.sequence = sequence,
                             .round = Round(++round),
                             .base = Position(base),
                             .committed = std::move(committed),
                             .gamma = 64,
                             .pass_ns = pass_ns,
                             .row_ns = row_ns})
                    .ok());
    std::vector<DraftAnswer> answers;
    while (drafter->work(answers)) continue;
    return static_cast<int32_t>(answers.at(0).draft.ids.size());
  };
  int32_t found = drafted(0, 0, {});
  for (int i = 0; i < 200; ++i) {
    std::vector<TokenId> right;
    for (int32_t n = 0; n <= found; ++n) right.push_back(next());
    found = drafted(0, 0, std::move(right));
  }
  EXPECT_EQ(found, 64) << "without prices";
  EXPECT_EQ(drafted(1000, 0, {next()}), 64) << "rows that cost nothing";
  EXPECT_EQ(drafted(1000, 2000, {next()}), 0) << "rows that cost two passes";
  const int32_t some = drafted(1000, 30, {next()});
  EXPECT_GT(some, 16);
  const int32_t fewer = drafted(1000, 900, {next()});
  EXPECT_GT(fewer, 0) << "a token that is nearly sure, at less than a pass";
  EXPECT_LE(fewer, some);
}

// Four texts that go on differently behind 1, and drafts that were always accepted so far.
struct SuffixVotesTest : ::testing::Test {
  SuffixVotesTest() {
    for (const auto& text : {ids_of({1, 2, 3}), ids_of({1, 2, 4}), ids_of({1, 2, 4}), ids_of({1, 5, 3})}) {
      for (const TokenId id : text) index.append(id);
      index.end_text();
    }
    index.find(ids_of({1}), matches);
    for (int i = 0; i < 1000; ++i)
      for (const int position : {0, 1, 2}) acceptance.add(MatchAcceptance::kOwnText, 1, position, true);
  }
  TextIndex index{256};
  std::vector<TextIndex::Match> matches;
  MatchAcceptance acceptance;
};

TEST_F(SuffixVotesTest, AreOutvotedTokenByToken) {
  SuffixDraft best;
  SuffixVotes(0.1).consider(index, matches, MatchAcceptance::kOwnText, acceptance, 8, best);
  EXPECT_EQ(best.ids, ids_of({2, 4}));
  EXPECT_NEAR(best.expected, 3.0 / 4 + 3.0 / 4 * 2 / 3, 1e-9);
}

// The most likely continuation comes first. Continuations with fewer votes get branches in proportion to
// their votes.
TEST_F(SuffixVotesTest, TreesHaveTheOthersToo) {
  const auto tree_of = [&](const TreeShape& shape, int32_t depth) {
    SuffixDraft best;
    SuffixVotes(0.1).consider_tree(index, matches, MatchAcceptance::kOwnText, acceptance, shape, depth, best);
    return best;
  };
  const SuffixDraft all = tree_of({.widths = {}, .nodes = 8}, 8);
  EXPECT_EQ(all.tree.ids, ids_of({2, 4, 3, 5, 3}));
  EXPECT_EQ(all.tree.parents, (std::vector<int32_t>{-1, 0, 0, -1, 3}));
  EXPECT_EQ(all.ids, ids_of({2, 4})) << "what tells how far votes can be trusted";
  EXPECT_NEAR(all.expected, 3.0 / 4 + 2.0 / 4 + 1.0 / 4 + 1.0 / 4 + 1.0 / 4, 0.01);
  EXPECT_EQ(tree_of({.widths = {}, .nodes = 2}, 8).tree, DraftTree(ids_of({2, 4})));
  EXPECT_EQ(tree_of({.widths = {}, .nodes = 8}, 1).tree, DraftTree(ids_of({2, 5}), {-1, -1}));
  EXPECT_EQ(tree_of({.widths = {2, 1}}, 8).tree, DraftTree(ids_of({2, 4, 5, 3}), {-1, 0, -1, 2}));
  EXPECT_EQ(tree_of({.widths = {1, 2}}, 8).tree, DraftTree(ids_of({2, 4, 3}), {-1, 0, 0}));
  EXPECT_EQ(tree_of({.widths = {}, .nodes = 8, .node_price = 0.4f}, 8).tree, DraftTree(ids_of({2, 4})))
      << "what does not pay is not drafted";
}

TEST(SuffixDrafter, DraftsTreesUnderMatchRulesAndLearnsFromThem) {
  const auto drafter = make_suffix_drafter({});
  Text text(*drafter, 1, ids_of({7, 1, 2, 3, 8, 1, 2, 4, 9, 1, 2}));
  const DraftTree first = text.tree({}, 4, {.widths = {}, .nodes = 6});
  ASSERT_FALSE(first.is_chain());
  EXPECT_NE(child_with(first, kTreeRoot, TokenId(3)), kTreeRoot);
  EXPECT_NE(child_with(first, kTreeRoot, TokenId(4)), kTreeRoot);
  // Whether its first children were right decides how much is drafted later.
  const size_t before = first.size();
  for (int round = 0; round < 30; ++round)
    (void)text.tree(ids_of({100 + round, 1, 2}), 4, {.widths = {}, .nodes = 6});
  EXPECT_LT(text.tree(ids_of({99, 1, 2}), 4, {.widths = {}, .nodes = 6}).size(), before);
  // Rules that need q take a chain; a listed tree gives its number of nodes.
  Text other(*drafter, 2, ids_of({7, 1, 2, 3, 8, 1, 2, 4, 9, 1, 2}));
  EXPECT_TRUE(other.tree({}, 4, {.widths = {3, 2}}, QKind::kDense).is_chain());
  EXPECT_LE(other.tree(ids_of({5, 1, 2}), 4, {.parents = {-1, -1, 0}}).size(), 3u);
}

}  // namespace
}  // namespace outrider
