// Sums over ranks, in kernels.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/shared_code.h"
#include "comm/device_group.h"

namespace outrider::cuda {

template <Reduction kReduction>
using ElementOf = std::conditional_t<kReduction == Reduction::kTreeSum, float,
                                     std::conditional_t<kReduction == Reduction::kMerge, uint32_t, uint64_t>>;

template <Reduction kReduction, class T>
OUTRIDER_SHARED_CODE inline T combine(T a, T b) {
  if constexpr (kReduction == Reduction::kMerge) return a | b;
  if constexpr (kReduction == Reduction::kMax) return a > b ? a : b;
  if constexpr (kReduction == Reduction::kMin) return a < b ? a : b;
  return a + b;
}

// Level by level, the lower rank's value on the left. Neighbours first, so that with a power of two it is the
// balanced tree of comm/collectives.h; integers take any number.
template <Reduction kReduction, class T>
OUTRIDER_SHARED_CODE inline T combine_ranks(T (&values)[kMaxDeviceRanks], int size) {
  OUTRIDER_UNROLL
  for (int width = 1; width < kMaxDeviceRanks; width *= 2) OUTRIDER_UNROLL
  for (int r = 0; r + width < kMaxDeviceRanks; r += 2 * width)
    if (r + width < size) values[r] = combine<kReduction>(values[r], values[r + width]);
  return values[0];
}

// values[i] = over ranks r, gathered[r * count + i].
void reduce_gathered(StreamView stream, Reduction reduction, int ranks, const void* gathered, void* values,
                     int64_t count);

}  // namespace outrider::cuda
