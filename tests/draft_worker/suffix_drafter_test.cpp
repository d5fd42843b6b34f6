#include <gtest/gtest.h>

#include "comm/q_rows.h"
#include "draft_worker/drafter.h"
#include "draft_worker/suffix_votes.h"

namespace outrider {
namespace {

std::vector<TokenId> ids_of(std::initializer_list<int> values) {
  std::vector<TokenId> ids;
  for (int v : values) ids.emplace_back(v);
  return ids;
}

class Text {
 public:
  Text(Drafter& drafter, int sequence, std::vector<TokenId> prompt)
      : drafter_(drafter), sequence_(sequence), length_(static_cast<int32_t>(prompt.size())) {
    const auto size = length_;
    EXPECT_TRUE(
        drafter_
            .open({.sequence = sequence_, .ids = std::move(prompt), .prompt_length = size, .sampling = {}})
            .ok());
  }
  ~Text() { drafter_.close(sequence_); }

  // What is drafted once these tokens are known.
  std::vector<TokenId> draft(const std::vector<TokenId>& committed, int gamma, QKind q = QKind::kNone) {
    length_ += static_cast<int32_t>(committed.size());
    EXPECT_TRUE(drafter_
                    .begin({.sequence = sequence_,
                            .round = Round(++round_),
                            .base = Position(length_),
                            .committed = committed,
                            .gamma = gamma,
                            .q_kind = q})
                    .ok());
    std::vector<DraftAnswer> answers;
    while (drafter_.work(answers)) continue;
    EXPECT_EQ(answers.size(), 1u);
    if (q != QKind::kNone) {
      EXPECT_TRUE(
          validate_q_rows(answers[0].draft.q_kind, answers[0].draft.q, answers[0].draft.ids, 1000).ok());
    }
    return answers[0].draft.ids;
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

TEST(SuffixVotes, AreOutvotedTokenByToken) {
  TextIndex index(256);
  for (auto text : {ids_of({1, 2, 3}), ids_of({1, 2, 4}), ids_of({1, 2, 4}), ids_of({1, 5, 3})}) {
    for (TokenId id : text) index.append(id);
    index.end_text();
  }
  std::vector<TextIndex::Match> matches;
  index.find(ids_of({1}), matches);
  MatchAcceptance acceptance;
  for (int i = 0; i < 1000; ++i)
    for (int position : {0, 1, 2}) acceptance.add(MatchAcceptance::kOwnText, 1, position, true);
  SuffixDraft best;
  SuffixVotes(0.1).consider(index, matches, MatchAcceptance::kOwnText, acceptance, 8, best);
  EXPECT_EQ(best.ids, ids_of({2, 4}));
  EXPECT_NEAR(best.expected, 3.0 / 4 + 3.0 / 4 * 2 / 3, 1e-9);
}

}  // namespace
}  // namespace outrider
