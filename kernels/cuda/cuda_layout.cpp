#include "kernels/cuda/cuda_layout.h"

#include <algorithm>

#include "base/log.h"

namespace outrider::cuda {

Slices slices_from_ends(std::span<const int64_t> ends, int step_columns) {
  const size_t count = ends.size();
  CHECK(count >= 1 && count <= kMaxSlices && (count & (count - 1)) == 0, "{} slices", count);
  Slices slices;
  slices.count = static_cast<int32_t>(count);
  slices.step_columns = step_columns;
  for (size_t i = 0; i < count; ++i) {
    const auto end = static_cast<int32_t>(ends[i]);
    const int32_t length = end - slices.begin[i];
    CHECK(length >= 0 && (i + 1 == count || end % 2 == 0), "slice {} ends at column {}", i, end);
    slices.begin[i + 1] = end;
    slices.first_step[i + 1] = slices.first_step[i] + (length + step_columns - 1) / step_columns;
  }
  return slices;
}

Slices even_slices(int64_t k, int step_columns) {
  const int64_t steps = (k + step_columns - 1) / step_columns;
  int64_t ends[kMaxSlices];
  for (int i = 0; i < kMaxSlices; ++i) ends[i] = std::min(k, (i + 1) * steps / kMaxSlices * step_columns);
  return slices_from_ends(ends, step_columns);
}

LeafEnds leaves_from_ends(std::span<const int64_t> ends) {
  CHECK(ends.size() <= kMaxSlices, "{} leaves", ends.size());
  LeafEnds leaves{.count = static_cast<int32_t>(ends.size())};
  for (size_t i = 0; i < ends.size(); ++i) leaves.end[i] = static_cast<int32_t>(ends[i]);
  return leaves;
}

}  // namespace outrider::cuda
