// The work of one attention turn as a list that blocks share: which split of which tile is number so and so.
// How many there are is known on the device only. Included by kernels only.
#pragma once

#include "base/cuda_device.h"
#include "kernels/cuda/attention_splits.h"

namespace outrider::cuda {

// The splits of a listed row: [begin, end). Splits before `shared` belong to the tile that begins at this
// row. The other splits are the row's own tail. A sliding window may hide some splits from some rows of the
// tile.
struct RowSplits {
  int32_t begin = 0, shared = 0, end = 0;
  int32_t last = 0;  // position of the tile's last row, or of the row alone
};
__device__ __forceinline__ RowSplits splits_of(const AttentionTurn& turn, int32_t row, int32_t tile_rows) {
  const DeviceBatch& batch = turn.batch;
  const int32_t tail_begin = tail_begin_of(batch, row);
  const bool is_alone = tail_begin != kNoTail;
  if (!is_alone && tile_rows == 0) return {};
  const int32_t last = load_of_others(batch.positions + row + (is_alone ? 0 : tile_rows - 1));
  const int32_t shared = shared_splits(tail_begin, last);
  int32_t begin = tile_rows == 0 ? shared : 0;
  if (tile_rows > 0 && turn.a.window > 0) {  // no row of the tile is in front of this position
    begin = turn.first_split(is_alone ? tail_begin : load_of_others(batch.positions + row));
    begin = begin < shared ? begin : shared;
  }
  return {begin, shared, split_count(last + 1), last};
}

// Fills ends: the sum over rows of the splits listed with them (Hillis and Steele 1986). Before
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
    RowSplits splits;
    if (r < turn.rows) splits = splits_of(turn, row, load_of_others(turn.batch.tile_rows + row));
    ends[r] = sums[j] = splits.end - splits.begin;
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

// One split of one tile, or of one row with a tail, for one group of heads of one KV head: neighbours have
// the same rows and heads.
struct Item {
  int32_t row = -1, tile_rows = 0;
  RowSplits listed;
  int32_t kv_head = 0, group = 0, split = 0;

  __device__ __forceinline__ int32_t rows() const { return split < listed.shared ? tile_rows : 1; }
};
// `before`: any other, best the one before.
__device__ __forceinline__ Item item_at(const AttentionTurn& turn, const int* ends, int index, int groups,
                                        Item before) {
  const int units = turn.layer.kv_heads * groups;
  int low = 0, high = turn.rows - 1;  // the first row whose end is behind it
  while (low < high) {
    const int middle = (low + high) / 2;
    if (ends[middle] * units > index)
      high = middle;
    else
      low = middle + 1;
  }
  const int listed_before = low > 0 ? ends[low - 1] : 0, splits = ends[low] - listed_before;
  const int in_row = index - listed_before * units;
  Item item = before;
  if (item.row != turn.first_row + low) {
    item.row = turn.first_row + low;
    item.tile_rows = turn.batch.tile_rows[item.row];
    item.listed = splits_of(turn, item.row, item.tile_rows);
  }
  item.kv_head = in_row / splits / groups;
  item.group = in_row / splits % groups;
  item.split = item.listed.begin + in_row % splits;
  return item;
}

}  // namespace outrider::cuda
