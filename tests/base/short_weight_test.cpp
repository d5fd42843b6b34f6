#include "base/short_weight.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace outrider {
namespace {

TEST(ShortWeight, EveryPackedFormIsOneWeightAndBack) {
  std::optional<uint32_t> last;
  int weights = 0;
  for (uint32_t packed = 0; packed <= UINT16_MAX; ++packed) {
    const auto weight = unpack_short_weight(static_cast<uint16_t>(packed));
    if (!weight) continue;
    ++weights;
    EXPECT_TRUE(!last || *weight > *last) << packed;  // in order, so no two mean the same
    EXPECT_EQ(pack_short_weight(*weight), packed);
    EXPECT_EQ(round_to_short_weight(*weight), *weight);
    last = weight;
  }
  EXPECT_EQ(weights, 1024 * 23);
  EXPECT_EQ(last, 2047u << 21);
}

TEST(ShortWeight, RoundsToTheNearest) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 100'000; ++i) {
    const auto weight = static_cast<uint32_t>(random() >> (33 + random() % 31));  // of every size up to 2^31
    const uint32_t rounded = round_to_short_weight(weight);
    ASSERT_TRUE(pack_short_weight(rounded)) << weight;
    // Half of the distance between two weights of 11 bits.
    EXPECT_LE(std::abs(int64_t{rounded} - int64_t{weight}), int64_t{weight} >> 11) << weight;
  }
  EXPECT_EQ(round_to_short_weight(2047), 2047u);
  EXPECT_EQ(round_to_short_weight(4095), 4096u);
  EXPECT_EQ(round_to_short_weight(1u << 31), 1u << 31);
  EXPECT_FALSE(pack_short_weight(4095));
  EXPECT_FALSE(pack_short_weight(UINT32_MAX));
}

TEST(ShortWeight, ManyAreAsOneByOne) {
  std::vector<uint16_t> packed(UINT16_MAX + 1), again(packed.size());
  std::vector<uint32_t> weights(packed.size());
  for (size_t i = 0; i < packed.size(); ++i) packed[i] = static_cast<uint16_t>(i);
  EXPECT_FALSE(unpack_short_weights(packed, weights.data()));
  packed.resize(1024 * 23);  // the rest are none
  ASSERT_TRUE(unpack_short_weights(packed, weights.data()));
  weights.resize(packed.size());
  for (size_t i = 0; i < packed.size(); ++i) ASSERT_EQ(weights[i], unpack_short_weight(packed[i]));
  ASSERT_TRUE(pack_short_weights(weights, again.data()));
  again.resize(packed.size());
  EXPECT_EQ(again, packed);
  for (const uint32_t long_weight : {2049u, UINT32_MAX, (1u << 31) + 1}) {
    weights[77] = long_weight;
    EXPECT_FALSE(pack_short_weights(weights, again.data()));
  }
}

}  // namespace
}  // namespace outrider
