// Lengths of the codes that pack the entries of a sparse row of q (Rice 1979, Elias 1975).
#pragma once

#include <cstdint>

#include "base/bit_width.h"

namespace outrider {

// Numbers around 2^k take k + 1.5 bits or so.
OUTRIDER_SHARED_CODE constexpr int64_t rice_bits(uint32_t number, int k) {
  return int64_t{number >> k} + 1 + k;
}

// A number of at least 1 takes few bits if it is small: 1, 3, 3, 5, 5, 5, 5, 7, ...
OUTRIDER_SHARED_CODE constexpr int64_t elias_gamma_bits(uint32_t number) {
  return 2 * bit_width_of(number) - 1;
}

// LEB128.
OUTRIDER_SHARED_CODE constexpr int64_t varint_bytes(uint64_t number) {
  return number == 0 ? 1 : (bit_width_of(number) + 6) / 7;
}

// The parameter k of the code for the gaps between `count` ids below `id_end`. The longest code has k + 2
// bits for each id (with a weight of one bit) plus id_end >> k bits, so it grows with both arguments.
OUTRIDER_SHARED_CODE constexpr int gap_parameter(uint64_t id_end, uint64_t count) {
  return bit_width_of(id_end / count) - 1;
}

}  // namespace outrider
