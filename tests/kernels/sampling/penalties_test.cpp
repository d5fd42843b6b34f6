#include "kernels/sampling/penalties.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/kernels/sampling/reference.h"

namespace outrider {
namespace {

std::vector<TokenId> ids(std::initializer_list<int32_t> values) {
  std::vector<TokenId> result;
  for (int32_t v : values) result.emplace_back(v);
  return result;
}

TEST(Penalties, RepetitionDividesPositiveAndMultipliesNegativeLogits) {
  SamplingParams params{.repetition_penalty = 2};
  TokenCounts counts;
  counts.add_prompt(ids({0, 1, 1}));
  counts.add_output(TokenId(2));
  std::vector<float> row{4, -4, 6, 4, -4};
  apply_penalties(row, {0, 5}, params, &counts, {});
  EXPECT_EQ(row, (std::vector<float>{2, -8, 3, 4, -4}));
}

TEST(Penalties, PresenceAndFrequencyCountOutputOnly) {
  SamplingParams params{.presence_penalty = 0.5f, .frequency_penalty = 0.25f};
  TokenCounts counts;
  counts.add_prompt(ids({0, 1}));
  counts.add_output(ids({1, 2, 2}));
  std::vector<float> row{1, 1, 1, 1};
  apply_penalties(row, {0, 4}, params, &counts, {});
  EXPECT_EQ(row, (std::vector<float>{1, 0.25f, 0, 1}));
}

TEST(Penalties, DraftTokensCountAsOutputOfLaterRows) {
  SamplingParams params{.repetition_penalty = 2, .frequency_penalty = 0.25f};
  TokenCounts counts;
  counts.add_output(TokenId(2));
  std::vector<float> row{1, 1, 1, 1};
  apply_penalties(row, {0, 4}, params, &counts, ids({2, 3, 2}));
  EXPECT_EQ(row, (std::vector<float>{1, 1, 0.5f - 0.75f, 0.5f - 0.25f}));
  EXPECT_EQ(counts.find(TokenId(2)).in_output, 1);  // the draft left no trace
  EXPECT_EQ(counts.entries().size(), 1u);
}

TEST(Penalties, SlicesAndBias) {
  SamplingParams params{.repetition_penalty = 1.7f, .presence_penalty = -0.3f, .frequency_penalty = 0.11f};
  params.logit_bias = {{TokenId(3), 2.5f}, {TokenId(40), -1}};
  std::mt19937_64 rng(5);
  const auto raw = reference::random_logits(rng, 50, 3, 1000);
  std::vector<TokenId> prompt, output, drafted;
  for (int i = 0; i < 20; ++i) prompt.emplace_back(static_cast<int32_t>(rng() % 50));
  for (int i = 0; i < 20; ++i) output.emplace_back(static_cast<int32_t>(rng() % 50));
  for (int i = 0; i < 6; ++i) drafted.emplace_back(static_cast<int32_t>(rng() % 50));
  TokenCounts counts;
  counts.add_prompt(prompt);
  counts.add_output(output);
  std::vector<TokenId> all = output;
  all.insert(all.end(), drafted.begin(), drafted.end());
  const auto expected = reference::process(raw, params, prompt, all);  // temperature 0: penalties only
  for (int ranks : {1, 3, 8}) {
    std::vector<float> row = raw;
    for (int r = 0; r < ranks; ++r) {
      const IndexRange range = vocab_range(50, {r, ranks});
      apply_penalties(
          std::span(row).subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.size())), range,
          params, &counts, drafted);
    }
    EXPECT_EQ(row, expected);
  }
}

TEST(Penalties, EndsAreForbiddenUntilTheirPosition) {
  const SamplingParams params{.ends_from = 10, .ends = ids({1, 30, 49})};
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (int ranks : {1, 3}) {
    std::vector<float> row(50, 1);
    const auto forbid = [&](Position position) {
      for (int r = 0; r < ranks; ++r) {
        const IndexRange range = vocab_range(50, {r, ranks});
        forbid_ends(
            std::span(row).subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.size())),
            range, params, position);
      }
    };
    forbid(Position(10));
    EXPECT_EQ(row, std::vector<float>(50, 1));
    forbid(Position(9));
    for (int i = 0; i < 50; ++i)
      EXPECT_EQ(row[static_cast<size_t>(i)], i == 1 || i == 30 || i == 49 ? kNever : 1);
  }
  EXPECT_FALSE(is_plain_softmax({.rule = Rule::kToken, .temperature = 1, .ends = ids({1})}));
}

TEST(Penalties, EffectiveParameters) {
  SamplingParams params{.rule = Rule::kInvariant, .temperature = 9e-6f, .top_k = 5};
  EXPECT_EQ(effective_rule(params), Rule::kGreedy);
  EXPECT_EQ(inverse_temperature(params), 1.0f);
  EXPECT_FALSE(has_filters(params));
  params.temperature = 0.7f;
  EXPECT_EQ(effective_rule(params), Rule::kInvariant);
  EXPECT_EQ(inverse_temperature(params), 1.0f / 0.7f);
  EXPECT_TRUE(has_filters(params));
}

}  // namespace
}  // namespace outrider
