#include "base/float8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace outrider {
namespace {

TEST(Float8, EveryCodeComesBack) {
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_to_float(static_cast<uint8_t>(code));
    EXPECT_EQ(std::isnan(value), (code & 0x7f) == 0x7f) << code;
    EXPECT_EQ(to_e4m3(value), code) << value;
  }
  EXPECT_EQ(e4m3_to_float(0x7e), kLargestE4m3);
  EXPECT_EQ(e4m3_to_float(0x01), 0x1p-9f);
  EXPECT_EQ(e4m3_to_float(0x08), 0x1p-6f);
  EXPECT_EQ(e4m3_to_float(0xb8), -1.0f);
}

// Between two neighbours the nearer one wins, and in the middle the even one.
TEST(Float8, RoundsToNearestTiesToEven) {
  for (int code = 0; code < 0x7e; ++code) {
    const float low = e4m3_to_float(static_cast<uint8_t>(code));
    const float high = e4m3_to_float(static_cast<uint8_t>(code + 1)), middle = (low + high) / 2;
    EXPECT_EQ(to_e4m3(middle), code % 2 == 0 ? code : code + 1) << middle;
    EXPECT_EQ(to_e4m3(std::nextafter(middle, 0.0f)), code) << middle;
    EXPECT_EQ(to_e4m3(std::nextafter(middle, 1e9f)), code + 1) << middle;
    EXPECT_EQ(to_e4m3(-std::nextafter(middle, 1e9f)), 0x80 + code + 1) << middle;
  }
}

TEST(Float8, WhatIsTooLargeBecomesTheLargest) {
  EXPECT_EQ(to_e4m3(449.0f), 0x7e);
  EXPECT_EQ(to_e4m3(-1e30f), 0xfe);
  EXPECT_EQ(to_e4m3(std::numeric_limits<float>::infinity()), 0x7e);
  EXPECT_EQ(to_e4m3(std::numeric_limits<float>::quiet_NaN()) & 0x7f, 0x7f);
}

}  // namespace
}  // namespace outrider
