#include "transformer/sampling/draft_sampler.h"

#include <gtest/gtest.h>

#include "base/short_weight.h"
#include "tests/transformer/sampling/reference.h"

namespace outrider {
namespace {

class DraftSamplerTest : public testing::Test {
 protected:
  std::optional<TokenId> sample(std::vector<float> logits, const DraftStep& step,
                                IntegerWeights* q = nullptr) {
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

TEST_F(DraftSamplerTest, SparseKeepsTheBestWeights) {
  std::mt19937_64 rng(2);
  for (size_t vocab_size : {7, 100, 2000, 9001}) {
    for (int32_t m : {1, 8, 64, 20000}) {
      const auto row = reference::random_logits(rng, vocab_size, 6, 4);
      const float max = *std::max_element(row.begin(), row.end());
      IntegerWeights dense, sparse;
      std::vector<uint64_t> scratch;
      make_integer_weights(row, max, 0, dense, scratch);
      make_integer_weights(row, max, m, sparse, scratch);
      ASSERT_TRUE(dense.ids.empty());
      ASSERT_EQ(dense.weights.size(), vocab_size);
      std::vector<uint32_t> ids;
      for (uint32_t v = 0; v < vocab_size; ++v)
        if (dense.weights[v] > 0) ids.push_back(v);
      std::stable_sort(ids.begin(), ids.end(),
                       [&](uint32_t a, uint32_t b) { return dense.weights[a] > dense.weights[b]; });
      ids.resize(std::min(ids.size(), static_cast<size_t>(m)));
      std::sort(ids.begin(), ids.end());
      EXPECT_EQ(sparse.ids, ids);
      uint64_t sum = 0;
      for (size_t i = 0; i < ids.size(); ++i) {
        EXPECT_EQ(sparse.weights[i], dense.weights[ids[i]]);
        sum += sparse.weights[i];
      }
      EXPECT_EQ(sparse.sum, sum);
    }
  }
}

// Rounded for the wire by the sampler itself, so that what travels is what was drawn from.
TEST_F(DraftSamplerTest, EveryWeightTravelsInTwoBytes) {
  std::mt19937_64 rng(3);
  const auto row = reference::random_logits(rng, 3000, 6, 4);
  const float max = *std::max_element(row.begin(), row.end());
  IntegerWeights q;
  std::vector<uint64_t> scratch;
  make_integer_weights(row, max, 0, q, scratch);
  for (size_t v = 0; v < row.size(); ++v) {
    EXPECT_TRUE(pack_short_weight(q.weights[v])) << q.weights[v];
    const double exact = std::exp(static_cast<double>(row[v]) - max) * 0x1p31;
    EXPECT_NEAR(q.weights[v], exact, 0.51 + exact / 2048);
  }
}

// The token's law is q itself, the integers that travel. chi-square, 5 degrees of freedom: 27.9 is exceeded
// with probability 3.8e-5.
TEST_F(DraftSamplerTest, DrawsFromTheIntegersItReports) {
  const std::vector<float> raw{0, 2, 1, -1, 1.5f, 0.5f, -3, 0.25f, -2};
  SamplingParams params{.rule = Rule::kToken, .temperature = 1.25f};
  params.seed = Seed{31};
  IntegerWeights q;
  std::vector<int> count(raw.size());
  constexpr int kDraws = 30000;
  for (int i = 0; i < kDraws; ++i) {
    const DraftStep step{.sampling = &params, .position = Position(i), .round = Round(3), .sparse_m = 6};
    const auto token = sample(raw, step, &q);
    ASSERT_TRUE(token.has_value());
    ++count[static_cast<size_t>(token->value())];
  }
  ASSERT_EQ(q.ids, (std::vector<uint32_t>{0, 1, 2, 4, 5, 7}));
  double chi_square = 0;
  int drawn = 0;
  for (size_t i = 0; i < q.ids.size(); ++i) {
    const double expected = static_cast<double>(kDraws) * q.weights[i] / static_cast<double>(q.sum);
    chi_square += (count[q.ids[i]] - expected) * (count[q.ids[i]] - expected) / expected;
    drawn += count[q.ids[i]];
  }
  EXPECT_EQ(drawn, kDraws);  // nothing outside the list
  EXPECT_LT(chi_square, 27.9);
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
