// Weights of draft distributions that travel in 16 bits: integers of up to 32 bits with at most 11
// significant ones, written as exponent (6 bits) and mantissa (10 bits, the leading one implied), like a
// float without a sign.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>

namespace outrider {

constexpr int kShortWeightMantissa = 10;

// The nearest such weight, ties up. `weight` at most 2^31.
constexpr uint32_t round_to_short_weight(uint32_t weight) {
  const int extra = std::bit_width(weight) - (kShortWeightMantissa + 1);
  if (extra <= 0) return weight;
  const uint32_t half = uint32_t{1} << (extra - 1);
  return (weight + half) >> extra << extra;
}

// Empty: it has more significant bits.
constexpr std::optional<uint16_t> pack_short_weight(uint32_t weight) {
  const int extra = std::bit_width(weight) - (kShortWeightMantissa + 1);
  if (extra < 0) return static_cast<uint16_t>(weight);
  if (weight >> extra << extra != weight) return std::nullopt;
  const uint32_t mantissa = (weight >> extra) & ((1u << kShortWeightMantissa) - 1);
  return static_cast<uint16_t>(static_cast<uint32_t>(extra + 1) << kShortWeightMantissa | mantissa);
}

// Empty: no weight of 32 bits is packed like this.
constexpr std::optional<uint32_t> unpack_short_weight(uint16_t packed) {
  const uint32_t exponent = packed >> kShortWeightMantissa;
  const uint32_t mantissa = packed & ((1u << kShortWeightMantissa) - 1);
  if (exponent == 0) return mantissa;
  if (exponent > 32 - kShortWeightMantissa) return std::nullopt;
  return (1u << kShortWeightMantissa | mantissa) << (exponent - 1);
}

}  // namespace outrider
