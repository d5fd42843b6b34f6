// Which part of the matrices of a mixture a pass needs, in device memory. What no row of the pass chose is
// not read: tiles of outputs that nobody looks at, and steps of a contraction whose inputs are all zero,
// which would add zeros.
#pragma once

#include <cstdint>

namespace outrider::cuda {

struct ChosenWork {
  const int32_t* tiles = nullptr;   // of 16 rows of weights, ascending; null: all
  const int32_t* steps = nullptr;   // of slice s from its first step on, counted in it, ascending; null: all
  const int32_t* counts = nullptr;  // of tiles, then of each slice's steps
};

}  // namespace outrider::cuda
