#include "kernels/sampling/token_math.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

#include "kernels/sampling/row_kernels.h"

namespace outrider {
namespace {

// The functions that kernels on a device call, one token at a time, against the vector loops of the host.
TEST(TokenMath, OneTokenEqualsTheVectorLoops) {
  std::mt19937_64 rng(1);
  std::normal_distribution<float> bell(0, 8);
  std::uniform_real_distribution<double> unit(0, 1);
  for (int row = 0; row < 200; ++row) {
    std::vector<float> logits(1 + rng() % 700);
    for (float& logit : logits) logit = rng() % 20 == 0 ? -std::numeric_limits<float>::infinity() : bell(rng);
    logits[rng() % logits.size()] = 30;
    const float max = *std::max_element(logits.begin(), logits.end());
    std::vector<uint64_t> weights(logits.size()), residual(logits.size());
    fill_weights(logits, max, weights);
    const uint64_t total = sum_weights(logits, max);
    std::vector<double> q(logits.size());
    for (double& value : q) value = unit(rng) / static_cast<double>(logits.size());
    const double ratio = unit(rng);
    fill_residual(weights, total, ratio, q, residual);
    for (size_t i = 0; i < logits.size(); ++i) {
      ASSERT_EQ(fixed_weight(logits[i], max), weights[i]) << logits[i];
      ASSERT_EQ(residual_weight(weights[i], static_cast<double>(total), ratio, q[i]), residual[i]);
    }
  }
}

TEST(TokenMath, NoiseWordsArePhilox) {
  NoiseWords words;
  fill_noise_words(Seed{0x123456789abcdef0}, Position(77), 5, 0, words);
  for (uint32_t token = 5 * 64; token < 6 * 64; ++token) {
    uint32_t block[] = {token >> 2, 77, 0, static_cast<uint32_t>(Purpose::kGumbel) << 24};
    philox(block[0], block[1], block[2], block[3], 0x123456789abcdef0);
    EXPECT_EQ(words.of(token), block[token & 3]);
  }
}

}  // namespace
}  // namespace outrider
