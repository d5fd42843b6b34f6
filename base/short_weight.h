// Weights of draft distributions that travel in 16 bits: integers of up to 32 bits with at most 11
// significant ones, written as exponent (6 bits) and mantissa (10 bits, the leading one implied), like a
// float without a sign.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "base/bit_width.h"

namespace outrider {

constexpr int kShortWeightMantissa = 10;

// The nearest such weight, ties up. `weight` at most 2^31.
constexpr uint32_t round_to_short_weight(uint32_t weight) {
  const int extra = bit_width_of(weight) - (kShortWeightMantissa + 1);
  if (extra <= 0) return weight;
  const uint32_t half = uint32_t{1} << (extra - 1);
  return (weight + half) >> extra << extra;
}

// Conversions for weights that are known to fit, and for packed weights.
constexpr uint16_t short_weight_bits(uint32_t weight) {
  const int extra = std::max<int>(bit_width_of(weight) - (kShortWeightMantissa + 1), 0);
  // The mantissa's leading one adds one to the exponent.
  return static_cast<uint16_t>((static_cast<uint32_t>(extra) << kShortWeightMantissa) + (weight >> extra));
}
constexpr uint32_t weight_of_short_bits(uint16_t packed) {
  const uint32_t exponent = packed >> kShortWeightMantissa, normal = exponent != 0;
  const uint32_t mantissa = packed & ((1u << kShortWeightMantissa) - 1);
  return (mantissa | normal << kShortWeightMantissa) << ((exponent - normal) & 31);
}

// Empty: the weight has more significant bits.
constexpr std::optional<uint16_t> pack_short_weight(uint32_t weight) {
  const int extra = bit_width_of(weight) - (kShortWeightMantissa + 1);
  if (extra < 0) return static_cast<uint16_t>(weight);
  if (weight >> extra << extra != weight) return std::nullopt;
  const uint32_t mantissa = (weight >> extra) & ((1u << kShortWeightMantissa) - 1);
  return static_cast<uint16_t>(static_cast<uint32_t>(extra + 1) << kShortWeightMantissa | mantissa);
}

// Empty: not a packed weight.
constexpr std::optional<uint32_t> unpack_short_weight(uint16_t packed) {
  const uint32_t exponent = packed >> kShortWeightMantissa;
  const uint32_t mantissa = packed & ((1u << kShortWeightMantissa) - 1);
  if (exponent == 0) return mantissa;
  if (exponent > 32 - kShortWeightMantissa) return std::nullopt;
  return (1u << kShortWeightMantissa | mantissa) << (exponent - 1);
}

// Packs many weights without branches. False: some weight has more bits, and `out` is invalid.
inline bool pack_short_weights(std::span<const uint32_t> weights, uint16_t* out) {
  uint32_t cut = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const int extra = std::max<int>(bit_width_of(weights[i]) - (kShortWeightMantissa + 1), 0);
    cut |= weights[i] ^ weights[i] >> extra << extra;
    out[i] = short_weight_bits(weights[i]);
  }
  return cut == 0;
}

// False: some value is not a packed weight, and `out` is invalid. `out` has as many elements as `packed`.
inline bool unpack_short_weights(std::span<const uint16_t> packed, uint32_t* out) {
  constexpr uint32_t kMaxExponent = 32 - kShortWeightMantissa;
  bool valid = true;
  for (size_t i = 0; i < packed.size(); ++i) {
    valid &= packed[i] >> kShortWeightMantissa <= kMaxExponent;
    out[i] = weight_of_short_bits(packed[i]);
  }
  return valid;
}

}  // namespace outrider
