#include "heads/token_guesses.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "comm/messages/draft_forms.h"
#include "kernels/sampling/gumbel.h"

namespace outrider {
namespace {

std::vector<float> random_row(uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> row(300);
  for (float& logit : row) logit = static_cast<float>(random() % 4000) / 500;
  row[random() % row.size()] = kMinusInfinity;
  return row;
}

// Slow and obvious: all tokens by score.
std::vector<TokenId> ranked(const std::vector<float>& row, const SamplingParams& params, Position position) {
  std::vector<std::pair<float, int32_t>> all;
  for (size_t v = 0; v < row.size(); ++v) {
    if (row[v] == kMinusInfinity) continue;
    const auto id = static_cast<int32_t>(v);
    const float noise = params.rule == Rule::kInvariant
                            ? static_cast<float>(draw_gumbel(params.seed, position, TokenId(id)))
                            : 0.0f;
    all.emplace_back(-(row[v] + noise), id);
  }
  std::sort(all.begin(), all.end());
  std::vector<TokenId> ids;
  for (const auto& [score, id] : all) ids.emplace_back(id);
  return ids;
}

TEST(TokenGuesser, RanksByWhatTheTargetRanksBy) {
  TokenGuesser guesser;
  for (const Rule rule : {Rule::kGreedy, Rule::kInvariant, Rule::kToken})
    for (uint32_t seed = 0; seed < 20; ++seed) {
      const SamplingParams params{
          .rule = rule, .temperature = rule == Rule::kGreedy ? 0.0f : 1.0f, .seed = Seed{seed}};
      auto row = random_row(seed);
      const auto expected = ranked(row, params, Position(17));
      const TokenGuesses guesses = guesser.guess(row, params, Position(17));
      ASSERT_EQ(guesses.count, rule == Rule::kInvariant ? 4 : kMaxGuesses);
      for (int32_t i = 0; i < guesses.count; ++i)
        EXPECT_EQ(guesses.ids[static_cast<size_t>(i)], expected[static_cast<size_t>(i)])
            << rule_name(rule) << " " << seed;
    }
}

TEST(TokenGuesser, OffersNoMaskedToken) {
  std::vector<float> row(100, kMinusInfinity);
  row[40] = 1;
  row[7] = 2;
  TokenGuesser guesser;
  for (const Rule rule : {Rule::kGreedy, Rule::kInvariant}) {
    auto copy = row;
    const SamplingParams params{.rule = rule, .temperature = rule == Rule::kGreedy ? 0.0f : 1.0f};
    EXPECT_EQ(guesser.guess(copy, params, Position(3)).count, 2);
  }
}

// Noise a little short of what two scores are apart ties them when the sum is rounded, and the lower id is
// better then, though its chunk is looked at later.
TEST(TokenGuesser, ATieThatRoundingMakesIsSeen) {
  const SamplingParams params{.rule = Rule::kInvariant, .temperature = 1, .seed = Seed{4}};
  const TokenId lower(5), higher(70);
  const float logit = 1024;  // whose sums with noise are multiples of 2^-13
  int ties = 0;
  for (int32_t at = 0; ties == 0 && at < 100'000; ++at) {
    const Position position(at);
    const double noise = draw_gumbel(params.seed, position, lower),
                 others = draw_gumbel(params.seed, position, higher);
    const double step = std::ceil(noise * 16) / 16;  // of the table of bounds
    if (step - noise > 3e-5 || step == noise || others > noise) continue;
    std::vector<float> row(100, kMinusInfinity);
    row[5] = logit;
    row[70] = static_cast<float>(logit + step - others);
    if (row[70] + static_cast<float>(others) != logit + static_cast<float>(noise)) continue;
    ++ties;
    EXPECT_EQ(TokenGuesser().best(row, params, position, 1).front().id(), lower) << at;
  }
  EXPECT_EQ(ties, 1);
}

TEST(TokenGuesser, AMarginIsThatOfTheTwoBestScores) {
  TokenGuesser guesser;
  for (const Rule rule : {Rule::kGreedy, Rule::kInvariant, Rule::kToken}) {
    const SamplingParams params{
        .rule = rule, .temperature = rule == Rule::kGreedy ? 0.0f : 1.0f, .seed = Seed{9}};
    auto row = random_row(3);
    const auto order = ranked(row, params, Position(17));
    const auto score = [&](TokenId id) {
      const auto noise =
          rule == Rule::kInvariant ? static_cast<float>(draw_gumbel(params.seed, Position(17), id)) : 0.0f;
      return static_cast<double>(row[static_cast<size_t>(id.value())] + noise);
    };
    EXPECT_NEAR(guesser.margin(row, params, Position(17)), score(order[0]) - score(order[1]), 1e-5)
        << rule_name(rule);
    std::vector<float> one(100, kMinusInfinity);
    one[5] = 1;
    EXPECT_EQ(guesser.margin(one, params, Position(17)), static_cast<double>(kMaxMargin));
  }
}

TEST(TokenGuesses, AddsOnceAndRemoves) {
  TokenGuesses guesses;
  for (int v : {5, 3, 5, 9}) guesses.add(TokenId(v));
  EXPECT_EQ(guesses.count, 3);
  EXPECT_EQ(guesses.rank_of(TokenId(9)), 2);
  guesses.remove(TokenId(3));
  EXPECT_EQ(guesses.rank_of(TokenId(9)), 1);
  EXPECT_EQ(guesses.rank_of(TokenId(3)), kMaxGuesses);
  for (int v = 20; v < 40; ++v) guesses.add(TokenId(v));
  EXPECT_EQ(guesses.count, kMaxGuesses);
}

}  // namespace
}  // namespace outrider
