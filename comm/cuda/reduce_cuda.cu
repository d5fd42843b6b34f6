// Reduces gathered elements in the fixed tree.
#include "base/cuda_device.h"
#include "comm/cuda/reduce.h"

namespace outrider::cuda {
namespace {

constexpr int kThreads = 256;

template <Reduction kReduction>
__global__ void __launch_bounds__(kThreads) reduce_ranks(int ranks, const ElementOf<kReduction>* gathered,
                                                         ElementOf<kReduction>* values, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  ElementOf<kReduction> all[kMaxDeviceRanks] = {};
  OUTRIDER_UNROLL
  for (int r = 0; r < kMaxDeviceRanks; ++r)
    if (r < ranks) all[r] = gathered[r * count + i];
  values[i] = combine_ranks<kReduction>(all, ranks);
}

template <Reduction kReduction>
void reduce(StreamView stream, int ranks, const void* gathered, void* values, int64_t count) {
  using T = ElementOf<kReduction>;
  launch(stream, {.grid_x = static_cast<unsigned>((count + kThreads - 1) / kThreads), .threads = kThreads},
         &reduce_ranks<kReduction>, ranks, static_cast<const T*>(gathered), static_cast<T*>(values), count);
}

}  // namespace

void reduce_gathered(StreamView stream, Reduction reduction, int ranks, const void* gathered, void* values,
                     int64_t count) {
  if (count == 0) return;
  switch (reduction) {
    case Reduction::kTreeSum:
      return reduce<Reduction::kTreeSum>(stream, ranks, gathered, values, count);
    case Reduction::kMerge:
      return reduce<Reduction::kMerge>(stream, ranks, gathered, values, count);
    case Reduction::kSum:
      return reduce<Reduction::kSum>(stream, ranks, gathered, values, count);
    case Reduction::kMax:
      return reduce<Reduction::kMax>(stream, ranks, gathered, values, count);
    case Reduction::kMin:
      return reduce<Reduction::kMin>(stream, ranks, gathered, values, count);
  }
}

}  // namespace outrider::cuda
