#include "base/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace outrider {
namespace {

TEST(NaturalLog, IsWithinTwoUnitsOfTheLastPlace) {
  std::mt19937_64 rng(2);
  const auto check = [](double x) {
    const auto exact = std::log(static_cast<long double>(x));
    const double unit =
        std::nexttoward(std::abs(static_cast<double>(exact)), 1e9L) - std::abs(static_cast<double>(exact));
    ASSERT_LE(std::abs(static_cast<double>(natural_log(x) - exact)), 2 * unit) << x;
  };
  check(1);
  for (int i = 0; i < 200000; ++i) {
    check((static_cast<double>(static_cast<uint32_t>(rng())) + 0.5) * 0x1p-32);  // arguments of the noise
    check(static_cast<double>(rng() >> 11) * 0x1p-50);
    check(1 - static_cast<double>(rng() >> 44) * 0x1p-33);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// In fp32, as scores use it, the noise is what libm's logarithm gives but for one word in 10^7.
TEST(Gumbel, AgreesWithTheLibrary) {
  std::mt19937 rng(3);
  int different = 0;
  for (int i = 0; i < 1000000; ++i) {
    const auto word = static_cast<uint32_t>(rng());
    const double library = -std::log(-std::log((word + 0.5) * 0x1p-32));
    different += static_cast<float>(gumbel_of_word(word)) != static_cast<float>(library);
  }
  EXPECT_LE(different, 1);
}

TEST(MultiplyHigh, IsTheUpperHalf) {
  EXPECT_EQ(multiply_high(~uint64_t{0}, ~uint64_t{0}), ~uint64_t{0} - 1);
  EXPECT_EQ(multiply_high(uint64_t{1} << 63, 10), 5u);
}

}  // namespace
}  // namespace outrider
