// Numbers to blocks of GGUF: what is read back (gguf_codes.h) is near, nearer than with scales from the range
// alone, and the same on every instruction set.
#include "kernels/cpu/gguf_quantize.h"

#include <gtest/gtest.h>

#include <hwy/highway.h>
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "base/half.h"
#include "model_files/gguf_codes.h"

namespace outrider {
namespace {

constexpr Dtype kTypes[]{Dtype::kQ4K, Dtype::kQ5K, Dtype::kQ6K, Dtype::kQ5_0, Dtype::kQ8_0};
constexpr int64_t kColumns = 1024, kRows = 16;

// Rows of different sizes with some outliers, as matrices of models have.
std::vector<float> random_numbers(uint32_t seed) {
  std::mt19937 random(seed);
  std::student_t_distribution<float> near(5);
  std::vector<float> out;
  for (int64_t row = 0; row < kRows; ++row)
    for (int64_t i = 0; i < kColumns; ++i) out.push_back(near(random) * 0.02f * static_cast<float>(1 + row));
  return out;
}

std::vector<std::byte> blocks_of(Dtype type, std::span<const float> numbers) {
  const DtypeBlock block = dtype_block(type);
  std::vector<std::byte> out(numbers.size() / static_cast<size_t>(block.elements) *
                             static_cast<size_t>(block.bytes));
  quantize_blocks(type, numbers, out.data());
  return out;
}

std::vector<float> read_back(Dtype type, std::span<const std::byte> blocks, int64_t count) {
  const TensorInfo tensor{.name = "x", .dtype = type, .shape = {1, count}, .data = blocks};
  std::vector<float> out(static_cast<size_t>(count));
  gguf_codes(tensor)->read_weights(0, 0, out);
  return out;
}

// Root mean square of the differences over that of the numbers.
double distance(std::span<const float> numbers, std::span<const float> read) {
  double differences = 0, squares = 0;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const double number = numbers[i], difference = static_cast<double>(read[i]) - number;
    differences += difference * difference;
    squares += number * number;
  }
  return std::sqrt(differences / squares);
}

double distance_of(Dtype type, const std::vector<float>& numbers) {
  return distance(numbers, read_back(type, blocks_of(type, numbers), static_cast<int64_t>(numbers.size())));
}

// Codes of `steps` + 1 values from the least to the greatest number of each group.
double distance_by_range(const std::vector<float>& numbers, size_t group, float steps) {
  std::vector<float> read;
  for (size_t g = 0; g < numbers.size(); g += group) {
    const auto [low, high] = std::minmax_element(numbers.begin() + static_cast<ptrdiff_t>(g),
                                                 numbers.begin() + static_cast<ptrdiff_t>(g + group));
    const float scale = (*high - *low) / steps;
    for (size_t i = g; i < g + group; ++i)
      read.push_back(std::round((numbers[i] - *low) / scale) * scale + *low);
  }
  return distance(numbers, read);
}

TEST(GgufQuantize, ScalesThatAreSearchedForFitBetterThanTheRange) {
  const std::vector<float> numbers = random_numbers(1);
  const double by_range = distance_by_range(numbers, 32, 15);
  EXPECT_LT(distance_of(Dtype::kQ4K, numbers), 0.94 * by_range);
  EXPECT_LT(distance_of(Dtype::kQ5K, numbers), 0.94 * distance_by_range(numbers, 32, 31));
  EXPECT_LT(distance_of(Dtype::kQ5_0, numbers), 0.055);
  EXPECT_LT(distance_of(Dtype::kQ6K, numbers), 0.024);
  EXPECT_LT(distance_of(Dtype::kQ8_0, numbers), 0.008);
}

// Errors go where they count less. Zeros and equal numbers are importance, too.
TEST(GgufQuantize, WhatIsImportantIsNearer) {
  const std::vector<float> numbers = random_numbers(5);
  std::vector<float> importance(numbers.size());
  std::mt19937 random(6);
  for (float& one : importance) one = std::exp(std::normal_distribution<float>(0, 2)(random));
  const auto weighted_error = [&](Dtype type, std::span<const float> by) {
    std::vector<std::byte> blocks = blocks_of(type, numbers);
    quantize_blocks(type, numbers, blocks.data(), by);
    const std::vector<float> read = read_back(type, blocks, static_cast<int64_t>(numbers.size()));
    double sum = 0;
    for (size_t i = 0; i < read.size(); ++i)
      sum += double{importance[i]} * (read[i] - numbers[i]) * (read[i] - numbers[i]);
    return sum;
  };
  for (const Dtype type : {Dtype::kQ4K, Dtype::kQ5K, Dtype::kQ6K, Dtype::kQ5_0})
    EXPECT_LT(weighted_error(type, importance), 0.9 * weighted_error(type, {})) << dtype_name(type);
  EXPECT_EQ(weighted_error(Dtype::kQ8_0, importance), weighted_error(Dtype::kQ8_0, {}));
  for (const float same : {0.0f, 1.0f, 1e6f}) {
    const std::vector<float> alike(numbers.size(), same);
    EXPECT_LT(weighted_error(Dtype::kQ4K, alike), 3 * weighted_error(Dtype::kQ4K, {})) << same;
  }
}

// Columns that no text reached have an importance of 0, and still numbers.
TEST(GgufQuantize, GroupsWithoutImportanceAreWrittenAsWithoutAMatrix) {
  const std::vector<float> numbers = random_numbers(7);
  for (const Dtype type : {Dtype::kQ4K, Dtype::kQ5K, Dtype::kQ6K, Dtype::kQ5_0}) {
    const std::vector<std::byte> plain = blocks_of(type, numbers);
    std::vector<std::byte> blocks(plain.size());
    quantize_blocks(type, numbers, blocks.data(), std::vector<float>(numbers.size(), 0.0f));
    EXPECT_EQ(blocks, plain) << dtype_name(type);
    // One group of each super block.
    std::vector<float> importance(numbers.size(), 1.0f), group, read_group;
    for (size_t i = 0; i < importance.size(); ++i)
      if (i % 256 / 32 == 3) importance[i] = 0;
    quantize_blocks(type, numbers, blocks.data(), importance);
    const std::vector<float> read = read_back(type, blocks, static_cast<int64_t>(numbers.size()));
    for (size_t i = 0; i < importance.size(); ++i)
      if (importance[i] == 0) group.push_back(numbers[i]), read_group.push_back(read[i]);
    EXPECT_LT(distance(group, read_group), 0.15) << dtype_name(type);
  }
}

TEST(GgufQuantize, BytesAreTheSameOnEveryInstructionSet) {
  const std::vector<float> numbers = random_numbers(2);
  const int64_t all = hwy::SupportedTargets();
  std::vector<std::vector<std::byte>> expected;
  for (const Dtype type : kTypes) expected.push_back(blocks_of(type, numbers));
  for (int64_t left = all; left != 0; left &= left - 1) {
    hwy::SetSupportedTargetsForTest(left & -left);
    for (size_t i = 0; i < std::size(kTypes); ++i)
      EXPECT_EQ(blocks_of(kTypes[i], numbers), expected[i])
          << dtype_name(kTypes[i]) << " with " << hwy::TargetName(left & -left);
  }
  hwy::SetSupportedTargetsForTest(0);  // back to all
}

TEST(GgufQuantize, NumbersOfOneSizeComeBack) {
  for (const Dtype type : kTypes)
    for (const float value : {0.0f, 0.5f, -0.25f, 1e-30f, 3e4f}) {
      const std::vector<float> numbers(256, value);
      const std::vector<float> read = read_back(type, blocks_of(type, numbers), 256);
      // Scales in fp16 hold nothing below 2^-24.
      const float allowed = std::abs(value) * 0.01f + 1e-6f;
      for (const float got : read) ASSERT_NEAR(got, value, allowed) << dtype_name(type) << " " << value;
    }
}

TEST(GgufQuantize, NumbersOfBlocksOfFiveBitsAreKept) {
  const std::vector<float> numbers = random_numbers(4);
  const auto count = static_cast<int64_t>(numbers.size());
  const std::vector<float> once = read_back(Dtype::kQ5_0, blocks_of(Dtype::kQ5_0, numbers), count);
  EXPECT_LT(distance(once, read_back(Dtype::kQ5_0, blocks_of(Dtype::kQ5_0, once), count)), 1e-4);
}

TEST(GgufQuantize, ManyKindsOfNumbersStayNear) {
  std::mt19937 random(3);
  for (const Dtype type : kTypes)
    for (int kind = 0; kind < 400; ++kind) {
      std::vector<float> numbers(256);
      const float size = std::exp2(static_cast<float>(random() % 16) - 8), shift = kind % 3 == 0 ? size : 0;
      std::normal_distribution<float> normal(shift, size);
      for (float& x : numbers) {
        x = normal(random);
        if (kind % 4 == 1) x = std::abs(x);
        if (kind % 5 == 2 && random() % 3 != 0) x = 0;
      }
      if (kind % 7 == 3) numbers[random() % 256] = 20 * size;
      const double far = distance(numbers, read_back(type, blocks_of(type, numbers), 256));
      EXPECT_LT(far, type == Dtype::kQ8_0  ? 0.02
                     : type == Dtype::kQ6K ? 0.06
                                           : 0.2)
          << dtype_name(type) << kind;
    }
}

TEST(Half, RoundsToTheNearest) {
  for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = half_to_float(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(half_to_float(to_half(value))));
      continue;
    }
    EXPECT_EQ(to_half(value), half);
    if ((half & 0x7fff) >= 0x7bff) continue;  // the last finite one, and infinity
    const float above = half_to_float(static_cast<uint16_t>(half + 1)), middle = (value + above) / 2;
    EXPECT_EQ(to_half(middle), half % 2 == 0 ? half : half + 1);
    EXPECT_EQ(to_half(std::nextafter(middle, value)), half);
    EXPECT_EQ(to_half(std::nextafter(middle, above)), half + 1);
  }
  EXPECT_EQ(to_half(65519.9f), 0x7bff);
  EXPECT_EQ(to_half(65520.0f), 0x7c00);
}

}  // namespace
}  // namespace outrider
