#include "draft_worker/draft_window.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

std::vector<TokenId> tokens(std::initializer_list<int> values) {
  std::vector<TokenId> out;
  for (int v : values) out.emplace_back(v);
  return out;
}

TEST(DraftWindow, FullAcceptanceLeavesTwoPending) {
  DraftWindow window(tokens({1, 2, 3}));
  window.fed(window.pending());  // the prompt,
  window.fed(tokens({4, 5}));    // and of drafts 4 5 6 all but the last were fed
  ASSERT_TRUE(window.advance(Position(7), tokens({4, 5, 6, 7})).ok());  // all accepted, bonus 7
  EXPECT_EQ(window.keep(), 5);                                          // nothing is rolled back
  window.kept(5);
  EXPECT_EQ(window.pending().size(), 2u);
  EXPECT_EQ(window.hash(), prefix_hash(tokens({1, 2, 3, 4, 5, 6, 7})));
}

TEST(DraftWindow, RejectionRollsBackToTheCommonPrefix) {
  DraftWindow window(tokens({1, 2, 3}));
  window.fed(window.pending());
  window.fed(tokens({4, 5, 6}));
  ASSERT_TRUE(window.advance(Position(5), tokens({4, 9})).ok());  // 5 was rejected, recovery 9
  EXPECT_EQ(window.keep(), 4);
  EXPECT_EQ(window.keep(), 4);
  window.kept(4);
  EXPECT_EQ(window.pending().size(), 1u);
}

TEST(DraftWindow, TheLastCommittedTokenIsAlwaysFedAgain) {
  DraftWindow window(tokens({1, 2}));
  window.fed(window.pending());
  ASSERT_TRUE(window.advance(Position(2), {}).ok());  // the same round asked for once more
  EXPECT_EQ(window.keep(), 1);
}

TEST(DraftWindow, RepeatsAndOverlapsAreNoOps) {
  DraftWindow window(tokens({1, 2, 3}));
  ASSERT_TRUE(window.advance(Position(5), tokens({4, 5})).ok());
  ASSERT_TRUE(window.advance(Position(5), tokens({4, 5})).ok());
  ASSERT_TRUE(window.advance(Position(6), tokens({3, 4, 5, 6})).ok());
  EXPECT_EQ(window.committed().size(), 6u);
}

TEST(DraftWindow, TheCacheHoldsTheTextWithoutItsMiddle) {
  DraftWindow window(tokens({1, 2, 3, 4, 5, 6, 7, 8}));
  window.skip_to_last(2, 3);
  EXPECT_EQ(std::vector<TokenId>(window.read().begin(), window.read().end()), tokens({1, 2, 6, 7, 8}));
  EXPECT_EQ(window.in_read(Position(8)), 5);
  window.fed(window.pending());
  window.fed(tokens({9}));
  ASSERT_TRUE(window.advance(Position(10), tokens({9, 10})).ok());  // accepted, bonus 10
  EXPECT_EQ(window.keep(), 6);
  window.kept(6);
  EXPECT_EQ(window.pending().size(), 1u);
  EXPECT_EQ(window.hash(), prefix_hash(tokens({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}))) << "of the whole text";
  window.kept(2);
  window.skip_to_last(2, 1);
  EXPECT_EQ(std::vector<TokenId>(window.read().begin(), window.read().end()), tokens({1, 2, 10}));
  EXPECT_TRUE(window.knows(tokens({1, 2, 3, 4})));
}

TEST(DraftWindow, KnowsEveryPrefixOfTheCommittedText) {
  const DraftWindow window(tokens({1, 2, 3}));
  EXPECT_TRUE(window.knows(tokens({})));
  EXPECT_TRUE(window.knows(tokens({1, 2})));
  EXPECT_TRUE(window.knows(tokens({1, 2, 3})));
  EXPECT_FALSE(window.knows(tokens({1, 2, 3, 4})));
  EXPECT_FALSE(window.knows(tokens({1, 9})));
}

TEST(DraftWindow, GapsAndContradictionsAreTold) {
  DraftWindow window(tokens({1, 2, 3}));
  EXPECT_EQ(window.advance(Position(6), tokens({5, 6})).code(), StatusCode::kMalformed);  // 4 is missing
  EXPECT_EQ(window.advance(Position(4), tokens({9, 4})).code(), StatusCode::kMalformed);  // position 2 was 3
  EXPECT_EQ(window.advance(Position(2), {}).code(), StatusCode::kMalformed);  // committed text shrank
  EXPECT_EQ(window.advance(Position(1), tokens({1, 2})).code(), StatusCode::kMalformed);  // before the start
  EXPECT_EQ(window.committed().size(), 3u);
}

}  // namespace
}  // namespace outrider
