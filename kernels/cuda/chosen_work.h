// Lists, in device memory, the parts of a mixture's matrices that a pass needs. The rest is not read: output
// tiles of experts that no row chose, whose results are unused, and contraction steps whose inputs are all
// zero, which would add zeros.
#pragma once

#include <cstdint>

namespace outrider::cuda {

struct ChosenWork {
  const int32_t* tiles = nullptr;   // of 16 rows of weights, ascending; null: all
  const int32_t* steps = nullptr;   // of slice s from its first step on, counted in it, ascending; null: all
  const int32_t* counts = nullptr;  // of tiles, then of each slice's steps
};

}  // namespace outrider::cuda
