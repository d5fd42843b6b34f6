// The work of one attention turn as a list that blocks share: which split of which tile is number so and so.
// How many there are is known on the device only. Included by kernels only.
#pragma once

#include "base/cuda_device.h"
#include "transformer/ops/attention_splits.h"

namespace outrider::cuda {

// Fills ends: the sum over rows of the splits of tiles that begin there (Hillis and Steele 1986). Before
// await_inputs(): the batch was written several kernels ago, but perhaps after this multiprocessor last read
// it.
template <int kThreads>
__device__ __forceinline__ void list_splits(const AttentionTurn& turn, int* ends) {
  constexpr int kEach = kMaxTurnRows / kThreads;
  const int tid = static_cast<int>(threadIdx.x);
  int sums[kEach];
  OUTRIDER_UNROLL
  for (int j = 0; j < kEach; ++j) {
    const int r = tid + j * kThreads;
    const int32_t row = turn.first_row + r;
    const int32_t rows = r < turn.rows ? load_of_others(turn.batch.tile_rows + row) : 0;
    ends[r] = sums[j] = rows > 0 ? split_count(load_of_others(turn.batch.positions + row + rows - 1) + 1) : 0;
  }
  sync_block();
  for (int distance = 1; distance < turn.rows; distance *= 2) {
    OUTRIDER_UNROLL
    for (int j = 0; j < kEach; ++j)
      if (tid + j * kThreads >= distance) sums[j] += ends[tid + j * kThreads - distance];
    sync_block();
    OUTRIDER_UNROLL
    for (int j = 0; j < kEach; ++j) ends[tid + j * kThreads] = sums[j];
    sync_block();
  }
}

// One split of one tile for one KV head: neighbours have the same tile and head.
struct Item {
  int32_t row, kv_head, split;
};
__device__ __forceinline__ Item item_at(const AttentionTurn& turn, const int* ends, int index) {
  const int kv_heads = turn.layer.kv_heads;
  int low = 0, high = turn.rows - 1;  // the first row whose end is behind it
  while (low < high) {
    const int middle = (low + high) / 2;
    if (ends[middle] * kv_heads > index)
      high = middle;
    else
      low = middle + 1;
  }
  const int before = low > 0 ? ends[low - 1] : 0, splits = ends[low] - before;
  const int in_tile = index - before * kv_heads;
  return {turn.first_row + low, in_tile / splits, in_tile % splits};
}

}  // namespace outrider::cuda
