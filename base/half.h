// Rounding to IEEE half. half_to_float(): bfloat16.h.
#pragma once

#include <bit>
#include <cstdint>

namespace outrider {

// Binary32 to binary16: round to nearest, ties to even; what is too large becomes infinite, NaN stays NaN.
constexpr uint16_t to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7fffffff;
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x38800000) {  // subnormal: 1/2 has its lowest bit where they have theirs
    const uint32_t shifted = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f);
    return static_cast<uint16_t>(sign | (shifted - std::bit_cast<uint32_t>(0.5f)));
  }
  return static_cast<uint16_t>(sign | (((magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13) - (112u << 10)));
}

}  // namespace outrider
