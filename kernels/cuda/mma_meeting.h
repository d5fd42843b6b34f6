// Where the slices of a product meet that blocks have computed apart. Included by kernels only.
#pragma once

#include <bit>

#include "base/cuda_device.h"
#include "kernels/cuda/gates.h"
#include "kernels/cuda/mma_ring.h"

namespace outrider::cuda {

// Parts of a product's slices [slice][token][row of weights], and for every row tile how many slices have
// come. What a warp computes of a slice meets what the same warps of the other blocks do.
struct Meeting {
  float* partials = nullptr;
  uint32_t* arrived = nullptr;
  int32_t tokens = 0;  // that there is room for
  int32_t padded_n = 0;

  __device__ __forceinline__ float* at(int slice, int token, int tile) const {
    return partials + (static_cast<int64_t>(slice) * tokens + token) * padded_n + tile * kTileRows;
  }
  // Asked by a warp that has written its part: whether all other parts are written. `counter`: of this warp.
  __device__ __forceinline__ bool is_last(int counter, int slices) const {
    const bool is_first_lane = threadIdx.x % kWarp == 0;
    sync_warp();
    uint32_t before = 0;
    if (is_first_lane) before = arrive(arrived + counter);
    if (of_first_lane(before) + 1 < static_cast<uint32_t>(slices)) return false;
    if (is_first_lane) arrived[counter] = 0;  // for the next product
    sync_warp();
    return true;
  }
};

// Four rows of one row tile: the slices' parts added by index in the tree.
__device__ __forceinline__ void add_parts(const MmaArguments& a, const Meeting& meeting, int token, int tile,
                                          int row, float (&sums)[4]) {
  uint4 parts[kMaxSlices] = {};
  OUTRIDER_UNROLL
  for (int s = 0; s < kMaxSlices; ++s)
    if (s < a.slices.count) parts[s] = load_of_others(meeting.at(s, token, tile) + row);
  OUTRIDER_UNROLL
  for (int i = 0; i < 4; ++i) {
    float values[kMaxSlices];
    OUTRIDER_UNROLL
    for (int s = 0; s < kMaxSlices; ++s)
      values[s] = std::bit_cast<float>(i == 0   ? parts[s].x
                                       : i == 1 ? parts[s].y
                                       : i == 2 ? parts[s].z
                                                : parts[s].w);
    sums[i] = tree_sum(values, a.slices.count);
  }
}

// out of one row tile for tokens [first, end), four rows by a lane, or four pairs.
__device__ __forceinline__ void combine_tile(const MmaArguments& a, const Meeting& meeting, int tile,
                                             int first, int end) {
  const int quads = kTileRows / 4 / (a.gated.out ? 2 : 1);
  for (int o = static_cast<int>(threadIdx.x % kWarp); o < (end - first) * quads;
       o += static_cast<int>(kWarp)) {
    const int token = first + o / quads, row = o % quads * 4;
    float sums[4], ups[4];
    add_parts(a, meeting, token, tile, row, sums);
    if (a.gated.out) add_parts(a, meeting, token, tile, row + kTileRows / 2, ups);
    OUTRIDER_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int n = tile * kTileRows + row + i;
      if (a.gated.out)
        store_gated(a, token, tile, row + i, sums[i], ups[i]);
      else if (n < a.n)
        a.out[token * a.out_stride + n] = sums[i];
    }
  }
}

}  // namespace outrider::cuda
