#include "kernels/sampling/draft_sampler.h"

#include <gtest/gtest.h>

#include "base/short_weight.h"
#include "comm/q_rows.h"
#include "tests/kernels/sampling/reference.h"

namespace outrider {
namespace {

class DraftSamplerTest : public testing::Test {
 protected:
  std::optional<TokenId> sample(std::vector<float> logits, const DraftStep& step, QRow* q = nullptr) {
    return sampler_.sample(logits, step, q);
  }
  std::unique_ptr<Collectives> single_ = make_single_collectives();
  DraftSampler sampler_{*single_};
};

TEST_F(DraftSamplerTest, MatchRulesTakeTheirArgmax) {
  std::mt19937_64 rng(1);
  for (int i = 0; i < 60; ++i) {
    const auto raw = reference::random_logits(rng, 500, 2, 4);
    SamplingParams params{.temperature = 0.8f, .top_k = i % 2 ? 20 : 0, .repetition_penalty = 1.5f};
    params.seed = Seed{rng()};
    TokenCounts counts;
    const std::vector<TokenId> prompt{reference::argmax(raw)}, drafted{TokenId(4)};
    counts.add_prompt(prompt);
    const DraftStep step{.sampling = &params, .counts = &counts, .drafted = drafted, .position = Position(i)};
    params.rule = Rule::kInvariant;
    const auto processed = reference::process(raw, params, prompt, drafted);
    EXPECT_EQ(sample(raw, step), reference::gumbel_argmax(processed, params.seed, Position(i)));
    params.rule = Rule::kNaive;
    EXPECT_EQ(sample(raw, step), reference::argmax(processed));
    params.temperature = 0;
    params.rule = Rule::kToken;  // greedy whatever its name: no q
    EXPECT_EQ(sample(raw, step), reference::argmax(reference::process(raw, params, prompt, drafted)));
  }
}

// Rounded for the wire by the sampler itself, so that what travels is what was drawn from.
TEST_F(DraftSamplerTest, EveryWeightTravelsInTwoBytes) {
  std::mt19937_64 rng(3);
  const auto row = reference::random_logits(rng, 3000, 6, 4);
  const float max = *std::max_element(row.begin(), row.end());
  QRow q;
  std::vector<uint32_t> scratch;
  make_integer_weights(row, max, 0, q, scratch);
  for (size_t v = 0; v < row.size(); ++v) {
    EXPECT_TRUE(pack_short_weight(q.weights[v])) << q.weights[v];
    const double exact = std::exp(static_cast<double>(row[v]) - max) * 0x1p31;
    EXPECT_NEAR(q.weights[v], exact, 0.51 + exact / 2048);
  }
}

// The token's law is q itself, the integers that travel, listed or not. chi-square, 8 degrees of freedom: 34
// is exceeded with probability 4e-5.
TEST_F(DraftSamplerTest, DrawsFromTheIntegersItReports) {
  const std::vector<float> raw{0, 2, 1, -1, 1.5f, 0.5f, -3, 0.25f, -2};
  SamplingParams params{.rule = Rule::kToken, .temperature = 1.25f};
  params.seed = Seed{31};
  QRow q;
  std::vector<int> count(raw.size());
  constexpr int kDraws = 30000;
  for (int i = 0; i < kDraws; ++i) {
    const DraftStep step{.sampling = &params, .position = Position(i), .round = Round(3), .row_bytes = 8};
    const auto token = sample(raw, step, &q);
    ASSERT_TRUE(token.has_value());
    ++count[static_cast<size_t>(token->value())];
  }
  EXPECT_GT(q.ids.size(), 1u);
  EXPECT_LT(q.ids.size(), raw.size());
  double chi_square = 0;
  for (int32_t v = 0; v < static_cast<int32_t>(raw.size()); ++v) {
    const double expected =
        kDraws * static_cast<double>(weight_in(q, TokenId(v))) / static_cast<double>(q.sum);
    const double error = count[static_cast<size_t>(v)] - expected;
    chi_square += error * error / expected;
  }
  EXPECT_LT(chi_square, 34);
}

// A second draw without what the first gave: every id in proportion to its weight, listed or not. The 64 bits
// are run through in even steps, so the counts are exact but for a step.
TEST_F(DraftSamplerTest, DrawsWithoutReplacement) {
  const std::vector<QRow> rows = {{.weights = {3, 0, 5, 1, 7}, .sum = 16},
                                  {.ids = {1, 4}, .weights = {9, 5}, .sum = 14},
                                  {.ids = {0, 3}, .weights = {6, 4}, .sum = 18, .rest = 2, .id_end = 6}};
  for (const QRow& q : rows)
    for (const std::vector<TokenId>& gone : {std::vector<TokenId>{},
                                             {TokenId(4)},
                                             {TokenId(4), TokenId(0)},
                                             {TokenId(3), TokenId(2), TokenId(5)}}) {
      uint64_t left = q.sum;
      for (const TokenId id : gone) left -= weight_in(q, id);
      std::vector<int> seen(8);
      constexpr int kSteps = 60;
      for (uint64_t i = 0; i < left * kSteps; ++i) {
        const uint64_t bits = (~uint64_t{0} / (left * kSteps)) * i + (uint64_t{1} << 40);
        const auto token = draw_token_without(q, gone, bits);
        ASSERT_TRUE(token.has_value());
        ++seen[static_cast<size_t>(token->value())];
        if (gone.empty()) {
          EXPECT_EQ(*token, draw_token(q, bits));
        }
      }
      for (int32_t v = 0; v < 8; ++v) {
        const bool is_gone = std::find(gone.begin(), gone.end(), TokenId(v)) != gone.end();
        EXPECT_NEAR(seen[static_cast<size_t>(v)],
                    is_gone ? 0 : kSteps * static_cast<double>(weight_in(q, TokenId(v))), is_gone ? 0 : 1);
      }
    }
  EXPECT_FALSE(draw_token_without(rows[1], std::vector<TokenId>{TokenId(1), TokenId(4)}, 5).has_value());
}

TEST_F(DraftSamplerTest, RefusesRowsWithoutADistribution) {
  SamplingParams params{.rule = Rule::kInvariant, .temperature = 1};
  const DraftStep step{.sampling = &params};
  EXPECT_FALSE(sample({1, std::nanf(""), 2}, step).has_value());
  EXPECT_FALSE(sample({1, std::numeric_limits<float>::infinity(), 2}, step).has_value());
  EXPECT_FALSE(sample(std::vector<float>(5, reference::kMasked), step).has_value());
  EXPECT_TRUE(sample({reference::kMasked, -3}, step).has_value());
}

}  // namespace
}  // namespace outrider
