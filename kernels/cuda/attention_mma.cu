// Attention over KV in bf16 on tensor cores. A block takes one split of the KV for one tile: some
// neighbouring rows of a sequence, with all heads that share a KV head, are the columns of its instructions,
// so keys and values are read once for the whole tile. Scores are products with the keys as the 16-row
// operand, weighted values are products with the values' dimensions. A column depends on its own row and head
// alone, and the order of additions follows from positions and dimensions, so no bit depends on the other
// columns of a tile.
//
// Warps share a split by positions for the scores and by dimensions for the values: each reads its own keys
// and values, by copies of its own lanes, and the weights go through shared memory.
//
// Values that are part of their keys (latent attention) are fetched once, as keys, and turned in registers.
#include <algorithm>

#include "kernels/cuda/attention_tile.h"

namespace outrider::cuda {
namespace {

using namespace attention_tiles;

// d += operand a . (high + low), low first: the small terms.
__device__ __forceinline__ void multiply_halves(float (&d)[4], const uint4& a, const uint4& b) {
  const uint32_t rows[4] = {a.x, a.y, a.z, a.w}, high[2] = {b.x, b.y}, low[2] = {b.z, b.w};
  mma_16x8x16(d, rows, low);
  mma_16x8x16(d, rows, high);
}

// Scores of this warp's blocks: scores[j][c][i] of position g + (i >= 2 ? 8 : 0) of block warp + j kWarps and
// column 8 c + 2 t + i % 2, with g = lane / 4 and t = lane % 4.
template <int kColumnTiles>
using Scores = float[kWarpBlocks][kColumnTiles][4];

template <int kColumnTiles>
__device__ __forceinline__ void multiply_keys(const Room& room, const Shared& s, int blocks, int column_tiles,
                                              Scores<kColumnTiles>& scores) {
  for (int t = 0; t < room.dim_tiles; ++t) {
    uint4 keys[kWarpBlocks] = {};
    OUTRIDER_UNROLL
    for (int j = 0; j < kWarpBlocks; ++j) {
      const int block = warp_index() + j * kWarps;
      if (block < blocks) keys[j] = s.key_at(room, block, t)[lane_index()];
    }
    OUTRIDER_UNROLL
    for (int c = 0; c < kColumnTiles; ++c) {
      if (c >= column_tiles) continue;
      const uint4 q = s.q[(t * room.column_tiles + c) * room.lanes() + lane_index()];
      OUTRIDER_UNROLL
      for (int j = 0; j < kWarpBlocks; ++j)
        if (warp_index() + j * kWarps < blocks) multiply_halves(scores[j][c], keys[j], q);
    }
  }
}

// The columns of which this lane has scores: use(tile, side, column), column = 8 tile + 2 t + side.
template <int kColumnTiles, class Use>
__device__ __forceinline__ void for_each_column(int column_tiles, Use use) {
  OUTRIDER_UNROLL
  for (int c = 0; c < kColumnTiles; ++c) {
    if (c >= column_tiles) continue;
    OUTRIDER_UNROLL
    for (int side = 0; side < 2; ++side) use(c, side, c * 8 + lane_index() % 4 * 2 + side);
  }
}

// Scales and masks; then every column's maximum over this warp's positions.
template <int kColumnTiles>
__device__ __forceinline__ void find_maxima(const Shared& s, const ScoreScale& scale, int column_tiles,
                                            Scores<kColumnTiles>& scores) {
  const int g = lane_index() / 4;
  for_each_column<kColumnTiles>(column_tiles, [&](int c, int side, int column) {
    const int first = s.first[column], last = s.last[column];
    float max = -INFINITY;
    OUTRIDER_UNROLL
    for (int j = 0; j < kWarpBlocks; ++j) OUTRIDER_UNROLL
    for (int half = 0; half < 2; ++half) {
      float& score = scores[j][c][half * 2 + side];
      const int position = (warp_index() + j * kWarps) * kStep + g + half * 8;
      score = position >= first && position <= last ? scale(score) : -INFINITY;
      max = fmaxf(max, score);
    }
    for (int lanes = 4; lanes < static_cast<int>(kWarp); lanes *= 2)
      max = fmaxf(max, shuffle_xor(max, lanes));
    if (g == 0) s.maxima[warp_index() * kColumns + column] = max;
  });
}

__device__ __forceinline__ float max_of_warps(const Shared& s, int column) {
  float max = s.maxima[column];
  OUTRIDER_UNROLL
  for (int w = 1; w < kWarps; ++w) max = fmaxf(max, s.maxima[w * kColumns + column]);
  return max;
}
__device__ __forceinline__ float sum_of_warps(const Shared& s, int column) {
  static_assert(kWarps == 4);
  const float* sums = s.sums + column;
  return (sums[0] + sums[kColumns]) + (sums[2 * kColumns] + sums[3 * kColumns]);
}

// Scores become weights: their sums, and operand b of the product with the values.
template <bool kIsShared, int kColumnTiles>
__device__ __forceinline__ void soften(const Room& room, const Shared& s, int blocks, int column_tiles,
                                       Scores<kColumnTiles>& scores) {
  const int g = lane_index() / 4;
  for_each_column<kColumnTiles>(column_tiles, [&](int c, int side, int column) {
    const float max = max_of_warps(s, column);
    float sum = 0;
    OUTRIDER_UNROLL
    for (int j = 0; j < kWarpBlocks; ++j) {
      const float low = softmax_weight(scores[j][c][side], max);
      const float high = softmax_weight(scores[j][c][side + 2], max);
      sum = sum + (low + high);
      const int block = warp_index() + j * kWarps;
      if (block >= blocks) continue;
      // Tokens g and g + 8 are neighbouring columns of the values (value_column, turned): a word of the
      // lanes' first or second register.
      const int word = kIsShared ? g / 2 : g % 4, side_of_step = kIsShared ? g % 2 : g / 4;
      uint32_t nearest = 0, rest = 0;
      halve(low, high, nearest, rest);
      auto* words = reinterpret_cast<uint32_t*>(s.weights + (block * room.column_tiles + c) * room.lanes() +
                                                column % 8 * 4 + word);
      words[side_of_step] = nearest;
      words[2 + side_of_step] = rest;
    }
    for (int lanes = 4; lanes < static_cast<int>(kWarp); lanes *= 2) sum = sum + shuffle_xor(sum, lanes);
    if (g == 0) s.sums[warp_index() * kColumns + column] = sum;
  });
}

// A word of values at tokens t and t + 8 of a block of which `count` tokens count: memory behind the tile's
// last position may hold anything, and 0 times anything is not 0.
__device__ __forceinline__ uint32_t mask_tokens(uint32_t pair, int t, int count) {
  return (t < count ? pair & 0xffffu : 0u) | (t + 8 < count ? pair & 0xffff0000u : 0u);
}
template <bool kIsShared>
__device__ __forceinline__ uint4 mask_tokens(const uint4& words, int count) {
  const int t = lane_index() % 4, first = kIsShared ? 2 * t : t, second = kIsShared ? first + 1 : t + 4;
  return {mask_tokens(words.x, first, count), mask_tokens(words.y, first, count),
          mask_tokens(words.z, second, count), mask_tokens(words.w, second, count)};
}

// A tile of a key, tokens by dimensions, as operand a of values, dimensions by tokens: columns 2 t and 2 t +
// 1 are tokens 2 t and 2 t + 8, the next eight columns one token further.
__device__ __forceinline__ uint4 turned(const uint4& key) {
  const uint32_t upper_first = transpose_8x8(key.x), upper_last = transpose_8x8(key.y),
                 lower_first = transpose_8x8(key.z), lower_last = transpose_8x8(key.w);
  const auto even = [](uint32_t first, uint32_t last) { return (first & 0xffffu) | last << 16; };
  const auto odd = [](uint32_t first, uint32_t last) { return first >> 16 | (last & 0xffff0000u); };
  return {even(upper_first, upper_last), even(lower_first, lower_last), odd(upper_first, upper_last),
          odd(lower_first, lower_last)};
}

// weighted[d] of every column: one chain over the split's KV blocks for each.
template <bool kIsShared>
__device__ __forceinline__ void multiply_values(const AttentionTurn& turn, const Tile& tile, const Room& room,
                                                const Shared& s, int split, int positions, int column_tiles) {
  constexpr int kColumnTiles = most_column_tiles(kIsShared);
  const int blocks = (positions + kStep - 1) / kStep, g = lane_index() / 4, t = lane_index() % 4;
  for (int first = warp_index(); first < room.value_tiles; first += kDimTiles * kWarps) {
    float sums[kDimTiles][kColumnTiles][4] = {};
    for (int block = 0; block < blocks; ++block) {
      const int count = positions - block * kStep;
      uint4 values[kDimTiles] = {};
      OUTRIDER_UNROLL
      for (int j = 0; j < kDimTiles; ++j) {
        if (first + j * kWarps >= room.value_tiles) continue;
        values[j] = s.values[(block * room.value_tiles + first + j * kWarps) * room.lanes() + lane_index()];
        if constexpr (kIsShared) values[j] = turned(values[j]);
        if (count < kStep) values[j] = mask_tokens<kIsShared>(values[j], count);
      }
      OUTRIDER_UNROLL
      for (int c = 0; c < kColumnTiles; ++c) {
        if (c >= column_tiles) continue;
        const uint4 weights = s.weights[(block * room.column_tiles + c) * room.lanes() + lane_index()];
        OUTRIDER_UNROLL
        for (int j = 0; j < kDimTiles; ++j)
          if (first + j * kWarps < room.value_tiles) multiply_halves(sums[j][c], values[j], weights);
      }
    }
    OUTRIDER_UNROLL
    for (int j = 0; j < kDimTiles; ++j) OUTRIDER_UNROLL
    for (int c = 0; c < kColumnTiles; ++c) OUTRIDER_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int column = c * 8 + t * 2 + i % 2, dim = (first + j * kWarps) * kStep + g + (i >= 2 ? 8 : 0);
      if (column < tile.columns && dim < turn.layer.value_dim() && s.last[column] >= 0)
        turn.weighted(tile.row_of(column), tile.head_of(column), split)[dim] = sums[j][c][i];
    }
  }
}

// Blocks share the splits of a turn evenly; each block takes a consecutive run of splits. The number of
// splits is known on the device only.
template <bool kIsShared>
__global__ void __launch_bounds__(kThreads, kIsShared ? 1 : 2)
    attend_tiles(const AttentionTurn turn, const Room room) {
  const Shared s(room);
  list_splits<kThreads>(turn, s.ends);
  await_inputs();
  const int groups = turn.groups();
  const auto items = static_cast<int64_t>(s.ends[turn.rows - 1]) * turn.layer.kv_heads * groups;
  const auto first = static_cast<int>(items * blockIdx.x / gridDim.x);
  const auto end = static_cast<int>(items * (blockIdx.x + 1) / gridDim.x);
  const ScoreScale scale(turn);
  const int tid = static_cast<int>(threadIdx.x);
  Tile tile{.row = -1};
  Item item;
  for (int index = first; index < end; ++index) {
    item = item_at(turn, s.ends, index, groups, item);
    const bool is_new = item.row != tile.row || item.rows() != tile.rows || item.kv_head != tile.kv_head ||
                        item.group != tile.group;
    if (is_new) tile = tile_of(turn, item);
    if (tile.columns == 0) continue;  // the rank has none of this KV head's query heads
    const int column_tiles = (tile.columns + 7) / 8, split = item.split;
    const int begin = split * kSplitPositions, left = tile.last - begin + 1;
    const int positions = left < kSplitPositions ? left : kSplitPositions;
    const int blocks = (positions + kStep - 1) / kStep;
    fetch(turn, tile, room, s, split, blocks);
    if (is_new) stage_queries(turn, tile, room, s.q);
    for (int c = tid; c < kColumns; c += kThreads) {
      const int32_t position = c < tile.columns ? turn.batch.positions[tile.row_of(c)] : begin - 1;
      s.first[c] = turn.first_of(position) - begin;
      s.last[c] = position - begin;
    }
    sync_block();
    copy_async_wait<1>();
    Scores<most_column_tiles(kIsShared)> scores = {};
    multiply_keys(room, s, blocks, column_tiles, scores);
    find_maxima(s, scale, column_tiles, scores);
    sync_block();  // all maxima are written, and no warp reads keys any more
    soften<kIsShared>(room, s, blocks, column_tiles, scores);
    copy_async_wait<0>();
    sync_block();
    if (tid < tile.columns && s.last[tid] >= 0) {
      float* to = turn.max_and_sum(tile.row_of(tid), tile.head_of(tid), split);
      to[0] = max_of_warps(s, tid);
      to[1] = sum_of_warps(s, tid);
    }
    multiply_values<kIsShared>(turn, tile, room, s, split, positions, column_tiles);
    sync_block();  // the next split's keys take the place of the weights
  }
}

}  // namespace

AttentionTile attention_tile(int64_t heads, const KvLayer& layer, int64_t shared_bytes) {
  if (heads == 0) return {1, 1};
  int column_tiles = most_column_tiles(!layer.has_values());
  while (column_tiles > 0 && Room(layer, column_tiles).bytes() > shared_bytes) --column_tiles;
  if (column_tiles == 0) return {};
  const auto columns = static_cast<int64_t>(column_tiles) * 8, all = std::min(heads, columns);
  const int64_t groups = (heads + columns - 1) / columns;
  return {static_cast<int32_t>(columns / all), static_cast<int32_t>((heads + groups - 1) / groups)};
}

void prepare_attention(int64_t shared_bytes) {
  allow_shared_bytes(&attend_tiles<false>, static_cast<size_t>(shared_bytes));
  allow_shared_bytes(&attend_tiles<true>, static_cast<size_t>(shared_bytes));
  allow_attention_in_floats(shared_bytes);
}

void attend_on_tensor_cores(StreamView stream, const AttentionTurn& turn) {
  const int32_t rows = std::min(turn.rows, turn.a.tile_rows), groups = turn.groups();
  const int32_t heads = std::min({turn.a.tile_heads, turn.a.heads, turn.a.heads_per_kv});
  const Room room(turn.layer, (rows * heads + 7) / 8);
  CHECK(rows > 0 && room.column_tiles <= most_column_tiles(room.is_shared), "{} rows of {} heads", rows,
        heads);
  CHECK(turn.rows <= kMaxTurnRows, "{} rows in a turn", turn.rows);
  const int64_t items = int64_t{turn.splits} * turn.layer.kv_heads * groups * turn.rows;  // at most
  const LaunchShape shape{.grid_x = static_cast<unsigned>(
                              std::min<int64_t>(items, (room.is_shared ? 1 : 2) * turn.a.multiprocessors)),
                          .threads = kThreads,
                          .shared_bytes = static_cast<size_t>(room.bytes()),
                          .early = true};
  if (room.is_shared)
    launch(stream, shape, &attend_tiles<true>, turn, room);
  else
    launch(stream, shape, &attend_tiles<false>, turn, room);
}

}  // namespace outrider::cuda
