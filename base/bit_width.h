// The bits of a whole number, for the host and for kernels. nvcc 13.0 compiles std::bit_width,
// std::countl_zero and std::popcount of 64 bits, and std::countr_zero of any, to constants in device code,
// without a word. Those of 32 bits are right.
#pragma once

#include <bit>
#include <cstdint>

#include "base/shared_code.h"

namespace outrider {

OUTRIDER_SHARED_CODE constexpr int bit_width_of(uint32_t number) {
  return static_cast<int>(std::bit_width(number));
}
OUTRIDER_SHARED_CODE constexpr int bit_width_of(uint64_t number) {
  const auto high = static_cast<uint32_t>(number >> 32);
  return high > 0 ? 32 + bit_width_of(high) : bit_width_of(static_cast<uint32_t>(number));
}

}  // namespace outrider
