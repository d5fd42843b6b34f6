#include "coordinator/request/text_stream.h"

#include <gtest/gtest.h>

#include <random>

#include "toy_tokenizer.h"

namespace outrider {
namespace {

struct Shown {
  std::string text;
  bool stopped = false;
};

// Feeds a text in pieces; flushes at the end.
Shown show(std::vector<std::string> stops, const std::vector<std::string>& pieces) {
  StopMatcher matcher(std::move(stops));
  Shown shown;
  for (const std::string& piece : pieces) {
    shown.text += matcher.append(piece);
    if (matcher.stopped()) break;
  }
  shown.stopped = matcher.stopped();
  if (!shown.stopped) shown.text += matcher.flush();
  return shown;
}

TEST(StopMatcher, WithoutStopStringsNothingIsHeld) {
  StopMatcher matcher({});
  EXPECT_EQ(matcher.append("abc"), "abc");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopMatcher, HoldsABeginningUntilItIsDecided) {
  StopMatcher matcher({"END"});
  EXPECT_EQ(matcher.append("xE"), "x");
  EXPECT_EQ(matcher.append("N"), "");
  EXPECT_EQ(matcher.append("Q"), "ENQ");
  EXPECT_EQ(matcher.append("E"), "");
  EXPECT_EQ(matcher.flush(), "E");
}

TEST(StopMatcher, CutsBeforeTheStopStringAndStaysSilent) {
  StopMatcher matcher({"END"});
  EXPECT_EQ(matcher.append("abEN"), "ab");
  EXPECT_EQ(matcher.append("Dcd"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.append("more"), "");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopMatcher, TheEarliestOfSeveralWins) {
  const Shown shown = show({"yz", "cd"}, {"abc", "d yz"});
  EXPECT_EQ(shown.text, "ab");
  EXPECT_TRUE(shown.stopped);
  StopMatcher matcher({"yz", "cd"});
  EXPECT_EQ(matcher.append("abcd yz"), "ab");
  EXPECT_EQ(matcher.matched(), "cd");
}

TEST(StopMatcher, OverlappingBeginnings) {
  EXPECT_EQ(show({"aab"}, {"a", "a", "a", "b"}).text, "a");
  EXPECT_EQ(show({"abab"}, {"aba", "cabab"}).text, "abac");
  EXPECT_EQ(show({"\n\n"}, {"x\n", "y\n", "\n"}).text, "x\ny");
}

// min_tokens: a stop string counts from the piece on that it may end in, wherever it began.
TEST(StopMatcher, WhatEndsTooEarlyIsText) {
  StopMatcher matcher({"END", "N"});
  EXPECT_EQ(matcher.append("xENDN", false), "xENDN");
  EXPECT_EQ(matcher.append("yEN", false), "y");
  EXPECT_EQ(matcher.append("D", true), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.matched(), "END") << "the N in it came too early";

  StopMatcher other({"END", "N"});
  EXPECT_EQ(other.append("EN", false), "");
  EXPECT_EQ(other.append("xN", true), "ENx");
  EXPECT_EQ(other.matched(), "N");
}

// Whatever the pieces: the text before the first stop string, and never a character of it early.
TEST(StopMatcher, RandomPiecesAgreeWithSearchingTheWholeText) {
  std::mt19937 random(7);
  for (int run = 0; run < 3000; ++run) {
    std::string text;
    for (int i = 0; i < 30; ++i) text += static_cast<char>('a' + random() % 2);
    const std::vector<std::string> stops = {"abba", "aabb"};
    const size_t first = std::min(text.find(stops[0]), text.find(stops[1]));
    StopMatcher matcher(stops);
    std::string shown;
    for (size_t at = 0; at < text.size() && !matcher.stopped();
         ++at) {  // one by one: the earliest end is the match
      shown += matcher.append(text.substr(at, 1));
      ASSERT_LE(shown.size(), std::min(first, text.size()));
    }
    if (!matcher.stopped()) shown += matcher.flush();
    EXPECT_EQ(matcher.stopped(), first != std::string::npos);
    EXPECT_EQ(shown, text.substr(0, first));
  }
}

TEST(TextStream, WaitsForWholeCharacters) {
  ToyTokenizer tokenizer;
  TextStream stream(tokenizer, {}, {});
  EXPECT_EQ(stream.append(TokenId(5)), "");
  EXPECT_EQ(stream.append(TokenId(6)), "\xC3\xA9");
  EXPECT_EQ(stream.append(TokenId(0)), "");  // special
  EXPECT_EQ(stream.append(TokenId(5)), "");
  EXPECT_EQ(stream.flush(), "\xEF\xBF\xBD");
}

TEST(TextStream, AStopStringAcrossTokens) {
  ToyTokenizer tokenizer;
  TextStream stream(tokenizer, {}, {"bc"});
  EXPECT_EQ(stream.append(TokenId(10)), "a");
  EXPECT_EQ(stream.append(TokenId(11)), "");
  EXPECT_EQ(stream.append(TokenId(12)), "");
  EXPECT_TRUE(stream.stopped());
}

// The prompt's own text is neither shown nor searched.
TEST(TextStream, TheContinuationBeginsAfterThePrompt) {
  ToyTokenizer tokenizer;
  const std::vector<TokenId> prompt = {TokenId(11), TokenId(12)};
  TextStream stream(tokenizer, prompt, {"bc", "cd"});
  EXPECT_EQ(stream.append(TokenId(13)), "d");
  EXPECT_FALSE(stream.stopped());
}

}  // namespace
}  // namespace outrider
