// A draft head at a draft worker: it drafts when it has its rows of hidden states, reports missing rows, and
// keeps few rows.
#include "draft_worker/head/head_drafting.h"

#include <gtest/gtest.h>

#include "base/bfloat16.h"
#include "tests/heads/golden_heads.h"

namespace outrider {
namespace {

constexpr SequenceId kOne(1), kTwo(2);

std::vector<TokenId> text(size_t count) {
  std::vector<TokenId> ids;
  for (size_t i = 0; i < count; ++i) ids.emplace_back(static_cast<int32_t>(i * 37 % 302));
  return ids;
}

class HeadDraftingTest : public ::testing::TestWithParam<testing::GoldenHead> {
 protected:
  Open open(SequenceId sequence, size_t count, SamplingParams sampling = {}) const {
    return {.sequence = sequence,
            .ids = text(count),
            .prompt_length = static_cast<int32_t>(count),
            .sampling = sampling};
  }
  // Rows of tokens [first, end) of text().
  HiddenStateRows rows(SequenceId sequence, int32_t first, int32_t end) const {
    const auto ids = text(static_cast<size_t>(end) + 1);
    HiddenStateRows rows{.sequence = sequence,
                         .first = Position(first),
                         .ids = {ids.begin() + first + 1, ids.end()},
                         .width = static_cast<int32_t>(head_->hidden_size()),
                         .values = {}};
    for (int32_t at = first; at < end; ++at)
      for (int32_t i = 0; i < rows.width; ++i)
        rows.values.push_back(to_bf16(static_cast<float>((at * 7 + i * 3) % 13) / 6 - 1).bits);
    return rows;
  }
  Propose propose(SequenceId sequence, int32_t base, int32_t gamma = 3, uint32_t round = 1) const {
    return {
        .sequence = sequence, .round = Round(round), .base = Position(base), .committed = {}, .gamma = gamma};
  }
  std::vector<DraftAnswer> answers() {
    std::vector<DraftAnswer> all;
    while (drafter_.work(all)) {
    }
    return all;
  }
  // The draft after the first `base` tokens, whose hidden states arrived in order.
  std::vector<TokenId> expected(int32_t base, int32_t gamma = 3) const {
    HeadDrafting fresh(*head_, {});
    EXPECT_TRUE(fresh.open(open(kTwo, static_cast<size_t>(base))).ok());
    EXPECT_TRUE(fresh.take(rows(kTwo, 0, base - 1)).ok());
    EXPECT_TRUE(fresh.begin(propose(kTwo, base, gamma)).ok());
    std::vector<DraftAnswer> all;
    while (fresh.work(all)) {
    }
    return all.at(0).draft.ids;
  }

  const std::unique_ptr<Head> head_ =
      testing::load_head_or_die(GetParam(), {.max_rows = 16, .max_positions = 400, .kv_tokens = 3000});
  HeadDrafting drafter_{*head_, {.max_sequences = 2, .read_ahead = 8}};
};

TEST_P(HeadDraftingTest, ARoundWaitsForItsRowsAndAsksWhenItIsAskedAgain) {
  ASSERT_TRUE(drafter_.open(open(kOne, 20)).ok());
  ASSERT_TRUE(drafter_.begin(propose(kOne, 20)).ok());
  EXPECT_TRUE(answers().empty());
  ASSERT_TRUE(drafter_.take(rows(kOne, 0, 12)).ok());
  EXPECT_TRUE(answers().empty());
  EXPECT_EQ(drafter_.held(kOne).hidden_state_rows, 12);
  Propose again = propose(kOne, 20);
  again.sent_after_us = 900;
  EXPECT_FALSE(drafter_.begin(again).ok());
  EXPECT_EQ(drafter_.held(kOne).hidden_state_rows, 12);
  EXPECT_EQ(drafter_.held(kOne).committed, Position(20));
  ASSERT_TRUE(drafter_.take(rows(kOne, 12, 19)).ok());
  const auto made = answers();
  ASSERT_EQ(made.size(), 1u);
  EXPECT_EQ(made[0].draft.ids, expected(20));
  EXPECT_EQ(made[0].draft.sent_after_us, 900);
  // It may have been lost: the same once more.
  ASSERT_TRUE(drafter_.begin(again).ok());
  EXPECT_EQ(answers().at(0).draft.ids, made[0].draft.ids);
}

TEST_P(HeadDraftingTest, RowsMayComeTwiceAndOverlapAndNotBehindAGap) {
  ASSERT_TRUE(drafter_.open(open(kOne, 30)).ok());
  ASSERT_TRUE(drafter_.take(rows(kOne, 0, 10)).ok());
  EXPECT_FALSE(drafter_.take(rows(kOne, 14, 20)).ok());
  EXPECT_EQ(drafter_.held(kOne).hidden_state_rows, 10);
  ASSERT_TRUE(drafter_.take(rows(kOne, 3, 15)).ok());
  ASSERT_TRUE(drafter_.take(rows(kOne, 0, 10)).ok());
  (void)answers();
  ASSERT_TRUE(drafter_.take(rows(kOne, 0, 15)).ok()) << "they were read and forgotten";
  ASSERT_TRUE(drafter_.take(rows(kOne, 8, 29)).ok());
  ASSERT_TRUE(drafter_.begin(propose(kOne, 30)).ok());
  EXPECT_EQ(answers().at(0).draft.ids, expected(30));
}

TEST_P(HeadDraftingTest, RowsThatWentByALinkThatThereIsNotAreMissing) {
  ASSERT_TRUE(drafter_.open(open(kOne, 20)).ok());
  HiddenStateRows lost = rows(kOne, 0, 10);
  lost.values.clear();
  lost.transfer = 1;
  lost.count = 10;
  EXPECT_EQ(drafter_.take(lost).code(), StatusCode::kUnavailable);
  EXPECT_EQ(drafter_.held(kOne).hidden_state_rows, 0);
}

TEST_P(HeadDraftingTest, OtherTextsAreRefused) {
  EXPECT_FALSE(drafter_.take(rows(kOne, 0, 3)).ok()) << "not open";
  EXPECT_FALSE(drafter_.begin(propose(kOne, 3)).ok());
  ASSERT_TRUE(drafter_.open(open(kOne, 20)).ok());
  HiddenStateRows other = rows(kOne, 0, 10);
  other.ids[4] = TokenId(5);
  EXPECT_FALSE(drafter_.take(other).ok());
  other = rows(kOne, 0, 30);
  other.ids[25] = TokenId(302);
  EXPECT_FALSE(drafter_.take(other).ok()) << "the head has no such token";
  EXPECT_FALSE(drafter_.begin(propose(kOne, 19)).ok());
  ASSERT_TRUE(drafter_.take(rows(kOne, 0, 24)).ok());
  EXPECT_EQ(drafter_.held(kOne).committed, Position(25)) << "rows bring the text along";
  Open full = open(SequenceId(3), 3);
  ASSERT_TRUE(drafter_.open(open(kTwo, 3)).ok());
  EXPECT_EQ(drafter_.open(full).code(), StatusCode::kResourceExhausted);
  // The draft of the previous text is invalid for the new text.
  Open afresh = open(kOne, 6);
  afresh.ids[3] = TokenId(9);
  ASSERT_TRUE(drafter_.open(afresh).ok());
  EXPECT_EQ(drafter_.held(kOne).hidden_state_rows, 0);
}

// A round that went on without its draft: rows of later tokens have come.
TEST_P(HeadDraftingTest, ARoundThatIsOverIsNotDraftedFor) {
  ASSERT_TRUE(drafter_.open(open(kOne, 20)).ok());
  ASSERT_TRUE(drafter_.begin(propose(kOne, 20)).ok());
  ASSERT_TRUE(drafter_.take(rows(kOne, 0, 22)).ok());
  EXPECT_TRUE(answers().empty());
  ASSERT_TRUE(drafter_.begin(propose(kOne, 23, 3, 2)).ok());
  EXPECT_EQ(answers().at(0).draft.ids, expected(23));
}

TEST_P(HeadDraftingTest, RowsThatWereReadAreForgotten) {
  ASSERT_TRUE(drafter_.open(open(kOne, 330)).ok());
  int64_t most = 0;
  for (int32_t first = 0; first < 320; first += 20) {
    ASSERT_TRUE(drafter_.take(rows(kOne, first, first + 20)).ok());
    most = std::max(most, drafter_.rows_held());
    (void)answers();
    EXPECT_LE(drafter_.rows_held(), 8);
  }
  EXPECT_LE(most, 28);
  ASSERT_TRUE(drafter_.take(rows(kOne, 320, 329)).ok());
  ASSERT_TRUE(drafter_.begin(propose(kOne, 330)).ok());
  EXPECT_EQ(answers().at(0).draft.ids, expected(330));
  EXPECT_EQ(drafter_.rows_held(), 1);
  drafter_.close(kOne);
  EXPECT_EQ(drafter_.rows_held(), 0);
}

INSTANTIATE_TEST_SUITE_P(Heads, HeadDraftingTest, ::testing::ValuesIn(testing::kGoldenHeads),
                         testing::head_test_name);

}  // namespace
}  // namespace outrider
