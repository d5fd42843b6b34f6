#include "kernels/sampling/gumbel.h"

#include <gtest/gtest.h>

#include "base/philox.h"
#include "tests/kernels/sampling/reference.h"

namespace outrider {
namespace {

RankedToken pruned(const std::vector<float>& row, IndexRange range, Seed seed, Position position) {
  std::vector<float> slice(row.begin() + range.begin, row.begin() + range.end);
  const Chunks chunks{range};
  std::vector<float> chunk_max(static_cast<size_t>(chunks.count()));
  scale_and_scan(slice, chunks, 1.0f, chunk_max);
  return gumbel_argmax(slice, chunks, chunk_max, seed, position);
}

// Full evaluation of a few hundred rows of every shape: ties, flat rows (every token competes), peaked rows
// (almost everything is skipped), large scales (temperatures near 0), masks.
TEST(Gumbel, PruningChangesNothing) {
  std::mt19937_64 rng(11);
  for (int i = 0; i < 400; ++i) {
    const size_t vocab_size = 1 + rng() % (i % 8 == 0 ? 20000 : 700);
    const double spread = std::vector<double>{0, 0.3, 3, 12, 1e4}[static_cast<size_t>(i % 5)];
    auto row = reference::random_logits(rng, vocab_size, spread, i % 3 == 0 ? 1 : 1000);
    if (i % 7 == 0)
      for (size_t v = 0; v < vocab_size; ++v)
        if (rng() % 3 != 0) row[v] = kMinusInfinity;
    row[rng() % vocab_size] = 1;  // never all masked
    const Seed seed{rng()};
    const Position position(static_cast<int32_t>(rng() % 5000));
    const TokenId expected = reference::gumbel_argmax(row, seed, position);
    const auto size = static_cast<int64_t>(vocab_size);
    ASSERT_EQ(pruned(row, {0, size}, seed, position).id(), expected);
    const int64_t split = static_cast<int64_t>(rng() % (vocab_size + 1));
    const auto best =
        std::max(pruned(row, {0, split}, seed, position), pruned(row, {split, size}, seed, position));
    ASSERT_EQ(best.id(), expected);
    const auto v = static_cast<size_t>(expected.value());
    ASSERT_EQ(best.value(), row[v] + static_cast<float>(draw_gumbel(seed, position, expected)));
  }
}

TEST(Gumbel, BoundsOfTheNoise) {
  EXPECT_EQ(least_word_for_noise(-4), 0u);
  EXPECT_EQ(least_word_for_noise(23), uint64_t{1} << 32);
  EXPECT_EQ(least_word_for_noise(std::numeric_limits<double>::infinity()), uint64_t{1} << 32);
  for (double noise = -3.2; noise < 22.8; noise += 0.0137) {
    const uint64_t word = least_word_for_noise(noise);
    if (word > 0) {
      EXPECT_LT(gumbel_of_word(static_cast<uint32_t>(word - 1)), noise)
          << noise;  // nothing above is excluded
    }
    if (word < uint64_t{1} << 32) {
      EXPECT_GT(gumbel_of_word(static_cast<uint32_t>(word)), noise - 0.0626) << noise;
    }
  }
}

TEST(Gumbel, AllMasked) {
  EXPECT_EQ(pruned(std::vector<float>(130, kMinusInfinity), {0, 130}, Seed{1}, Position(1)).packed, 0u);
  EXPECT_EQ(pruned({1.0f}, {0, 0}, Seed{1}, Position(1)).packed, 0u);
}

// chi-square against softmax, 9 degrees of freedom: 37.0 is exceeded with probability 2.6e-5.
TEST(Gumbel, FollowsTheSoftmax) {
  const std::vector<float> row{0, 1, 2, -1, 0.5f, 1.5f, -2, 0.25f, 1, 3};
  constexpr int kDraws = 40000;
  std::vector<int> count(row.size());
  for (int i = 0; i < kDraws; ++i)
    ++count[static_cast<size_t>(pruned(row, {0, 10}, Seed{99}, Position(i)).id().value())];
  double z = 0, chi_square = 0;
  for (float logit : row) z += std::exp(logit);
  for (size_t v = 0; v < row.size(); ++v) {
    const double expected = kDraws * std::exp(row[v]) / z;
    chi_square += (count[v] - expected) * (count[v] - expected) / expected;
  }
  EXPECT_LT(chi_square, 37.0);
}

}  // namespace
}  // namespace outrider
