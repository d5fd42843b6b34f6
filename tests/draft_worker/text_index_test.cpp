#include "draft_worker/text/text_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace outrider {
namespace {

std::vector<TokenId> random_text(std::mt19937_64& rng, size_t size, int vocabulary) {
  std::vector<TokenId> text;
  for (size_t i = 0; i < size; ++i)
    text.emplace_back(static_cast<int32_t>(rng() % static_cast<uint64_t>(vocabulary)));
  return text;
}

// Length of the longest match of the suffix, over all places of all texts in the last `window` entries.
int32_t longest_by_search(const std::vector<std::vector<TokenId>>& texts, size_t window,
                          std::span<const TokenId> suffix) {
  std::vector<TokenId> all;
  for (const auto& text : texts) {
    all.insert(all.end(), text.begin(), text.end());
    all.emplace_back(-1);
  }
  const size_t first = all.size() > window ? all.size() - window : 0;
  int32_t longest = 0;
  for (size_t next = first + 1; next < all.size(); ++next) {
    if (all[next] == TokenId(-1)) continue;
    int32_t length = 0;
    while (static_cast<size_t>(length) < suffix.size() && length < TextIndex::kLongestMatch &&
           next >= first + 1 + static_cast<size_t>(length) &&
           all[next - 1 - static_cast<size_t>(length)] ==
               suffix[suffix.size() - 1 - static_cast<size_t>(length)])
      ++length;
    longest = std::max(longest, length);
  }
  return longest;
}

TEST(TextIndex, FindsWhatASearchThroughAllTextsFinds) {
  std::mt19937_64 rng(3);
  for (int trial = 0; trial < 60; ++trial) {
    const int vocabulary = trial % 2 ? 40 : 200;  // few enough repetitions for the chains not to be cut
    const size_t window = trial % 3 == 0 ? 64 : 1024;
    TextIndex index(window);
    std::vector<std::vector<TokenId>> texts;
    for (int t = 0; t < 6; ++t) {
      texts.push_back(random_text(rng, rng() % 60, vocabulary));
      if (t > 0 && !texts[0].empty())  // quote the first
        texts.back().insert(texts.back().end(),
                            texts[0].begin() + static_cast<std::ptrdiff_t>(rng() % texts[0].size()),
                            texts[0].end());
      for (TokenId id : texts.back()) index.append(id);
      index.end_text();
    }
    std::erase_if(texts, [](const auto& text) { return text.empty(); });
    std::vector<TextIndex::Match> matches;
    for (int query = 0; query < 20; ++query) {
      std::vector<TokenId> suffix = random_text(rng, 1 + rng() % 5, vocabulary);
      if (query % 2 == 0) {
        const auto& text = texts[rng() % texts.size()];
        const size_t end = 1 + rng() % text.size();
        suffix.assign(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(end));
      }
      index.find(suffix, matches);
      int32_t longest = 0;
      for (const auto& match : matches) {
        longest = std::max(longest, match.length);
        EXPECT_TRUE(index.at(match.next).has_value());
        for (int32_t back = 1; back <= match.length; ++back)
          EXPECT_EQ(index.at(match.next - static_cast<uint64_t>(back)),
                    suffix[suffix.size() - static_cast<size_t>(back)]);
      }
      EXPECT_EQ(longest, longest_by_search(texts, index.window(), suffix)) << "trial " << trial;
      EXPECT_LE(matches.size(), TextIndex::kMaxMatches);
    }
  }
}

TEST(TextIndex, MatchesDoNotReachOverTheEndOfAText) {
  TextIndex index(64);
  for (int id : {1, 2}) index.append(TokenId(id));
  index.end_text();
  for (int id : {3, 4}) index.append(TokenId(id));
  std::vector<TextIndex::Match> matches;
  index.find(std::vector<TokenId>{TokenId(1), TokenId(2)}, matches);
  EXPECT_TRUE(matches.empty()) << "a text ends behind it";
  index.find(std::vector<TokenId>{TokenId(2), TokenId(3)}, matches);
  ASSERT_EQ(matches.size(), 1u);
  EXPECT_EQ(matches[0].length, 1);
}

TEST(TextIndex, TheSamePlaceIsFoundOnceAndTheNewestFirst) {
  TextIndex index(64);
  for (int i = 0; i < 5; ++i)
    for (int id : {7, 8, 9, 10, 20 + i}) index.append(TokenId(id));
  std::vector<TextIndex::Match> matches;
  index.find(std::vector<TokenId>{TokenId(7), TokenId(8), TokenId(9), TokenId(10)}, matches);
  ASSERT_EQ(matches.size(), 5u);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(index.at(matches[static_cast<size_t>(i)].next), TokenId(24 - i));
}

}  // namespace
}  // namespace outrider
