// fp8 e4m3, a storage format: a sign, four bits of exponent (bias 7) and three of mantissa; no infinities,
// the largest number is 448, and NaN has all other bits set.
#pragma once

#include <bit>
#include <cstdint>

namespace outrider {

constexpr float kLargestE4m3 = 448;

constexpr float e4m3_to_float(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80) << 24;
  const uint32_t exponent = code >> 3 & 15, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::bit_cast<float>(sign | 0x7fc00000);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 120) << 23 | mantissa << 20);
  const float magnitude = static_cast<float>(mantissa) * 0x1p-9f;  // subnormal or zero
  return sign ? -magnitude : magnitude;
}

// Rounds to nearest, ties to even; larger numbers become the largest one; NaN stays NaN.
constexpr uint8_t to_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7fffffff;
  const auto sign = static_cast<uint8_t>(bits >> 24 & 0x80);
  if (magnitude > 0x7f800000) return static_cast<uint8_t>(sign | 0x7f);
  if (magnitude < 0x3c800000) {  // below 2^-6: whole multiples of 2^-9, rounded by the addition
    const float shifted = std::bit_cast<float>(magnitude) * 0x1p9f + 0x1p23f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) & 15));
  }
  const uint32_t code = ((magnitude + 0x7ffff + (magnitude >> 20 & 1)) >> 20) - (120u << 3);
  return static_cast<uint8_t>(sign | (code < 0x7e ? code : 0x7e));
}

}  // namespace outrider
