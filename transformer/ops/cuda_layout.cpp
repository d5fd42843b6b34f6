#include "transformer/ops/cuda_layout.h"

#include <algorithm>

#include "base/log.h"

namespace outrider::cuda {

Slices slices_from_ends(std::span<const int64_t> ends) {
  const size_t count = ends.size();
  CHECK(count >= 1 && count <= kMaxSlices && (count & (count - 1)) == 0, "{} slices", count);
  Slices slices;
  slices.count = static_cast<int32_t>(count);
  for (size_t i = 0; i < count; ++i) {
    const auto end = static_cast<int32_t>(ends[i]);
    const int32_t length = end - slices.begin[i];
    CHECK(length >= 0 && (i + 1 == count || end % 2 == 0), "slice {} ends at column {}", i, end);
    slices.begin[i + 1] = end;
    slices.first_step[i + 1] = slices.first_step[i] + (length + kStep - 1) / kStep;
  }
  return slices;
}

Slices even_slices(int64_t k) {
  const int64_t steps = (k + kStep - 1) / kStep;
  int64_t ends[kMaxSlices];
  for (int i = 0; i < kMaxSlices; ++i) ends[i] = std::min(k, (i + 1) * steps / kMaxSlices * kStep);
  return slices_from_ends(ends);
}

}  // namespace outrider::cuda
