// The unit of work of a block of attention on tensor cores (attention_mma.cu), its layout in shared memory,
// and the copies of queries, keys and values into it. Included there only.
#pragma once

#include "base/cuda_device.h"
#include "kernels/cuda/attention_items.h"

namespace outrider::cuda::attention_tiles {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * static_cast<int>(kWarp);
constexpr int kSplitBlocks = kSplitPositions / static_cast<int>(kBlockTokens);
constexpr int kWarpBlocks = kSplitBlocks / kWarps;  // KV blocks whose scores a warp computes
// The most tiles of 8 columns. Latents of DeepSeek's size leave room for half of the usual number.
constexpr int most_column_tiles(bool is_shared) { return is_shared ? 4 : 8; }
constexpr int kColumns = 8 * most_column_tiles(false);
constexpr int kDimTiles = 2;  // tiles of dimensions that a warp has in hand at a time

// Shared memory, in words of 16 bytes: a lane's part of an operand. Weights overwrite the keys. Where values
// are part of their keys, weights overwrite the tiles of dimensions that hold no values.
struct Room {
  int dim_tiles = 0;    // of a key
  int value_tiles = 0;  // of a value
  bool is_shared = false;
  int column_tiles = 0;

  __host__ __device__ Room(const KvLayer& layer, int columns_of_8)
      : dim_tiles(layer.dim_tiles()),
        value_tiles((layer.value_dim() + kStep - 1) / kStep),
        is_shared(!layer.has_values()),
        column_tiles(columns_of_8) {}
  __host__ __device__ int lanes() const { return static_cast<int>(kWarp); }
  // Tiles of a key that lie among the values, and those that lie apart.
  __host__ __device__ int shared_tiles() const { return is_shared ? value_tiles : 0; }
  __host__ __device__ int key_tiles() const { return dim_tiles - shared_tiles(); }
  __host__ __device__ int key_words() const {
    const int widest = key_tiles() > column_tiles ? key_tiles() : column_tiles;
    return kSplitBlocks * widest * lanes();
  }
  __host__ __device__ int value_words() const { return kSplitBlocks * value_tiles * lanes(); }
  __host__ __device__ int q_words() const { return dim_tiles * column_tiles * lanes(); }
  // Behind the words: the warps' maxima and sums, the positions that every column sees of this split, and the
  // list of the turn's splits.
  __host__ __device__ int64_t bytes() const {
    return int64_t{16} * (key_words() + value_words() + q_words()) +
           int64_t{4} * ((2 * kWarps + 2) * kColumns + kMaxTurnRows);
  }
};

struct Shared {
  uint4* keys;     // [KV block][tile of key_tiles()][lane]
  uint4* weights;  // [KV block][column tile][lane], in the same place
  uint4* values;   // [KV block][value tile][lane]
  uint4* q;        // [dim tile][column tile][lane]
  float* maxima;   // [warp][column]
  float* sums;     // [warp][column]
  // [column]: what the row sees, relative to the split: first may be behind it, last negative.
  int *first, *last;
  int* ends;  // [row of the turn]: splits of the tiles that begin there or before

  __device__ __forceinline__ explicit Shared(const Room& room) {
    keys = weights = shared_memory<uint4>();
    values = keys + room.key_words();
    q = values + room.value_words();
    maxima = reinterpret_cast<float*>(q + room.q_words());
    sums = maxima + kWarps * kColumns;
    first = reinterpret_cast<int*>(sums + kWarps * kColumns);
    last = first + kColumns;
    ends = last + kColumns;
  }
  // Tile t of a key.
  __device__ __forceinline__ uint4* key_at(const Room& room, int block, int t) const {
    const int shared = room.shared_tiles();
    return t < shared ? values + (block * shared + t) * room.lanes()
                      : keys + (block * room.key_tiles() + t - shared) * room.lanes();
  }
};

// The tile that a block computes, the same in all its threads.
struct Tile {
  int32_t row = 0;  // the first one
  int32_t rows = 0;
  int32_t kv_head = 0;     // of this rank
  int32_t group = 0;       // of its heads
  int32_t first_head = 0;  // query heads of this rank
  int32_t heads = 0;
  int32_t columns = 0;  // rows * heads; column c is row c / heads, head c % heads
  int32_t last = 0;     // position of the last row
  const int32_t* table = nullptr;
  RowSlots slots;  // a tile of several rows has no split with tails

  __device__ __forceinline__ int32_t row_of(int column) const { return row + column / heads; }
  __device__ __forceinline__ int32_t head_of(int column) const { return first_head + column % heads; }
};

__device__ __forceinline__ Tile tile_of(const AttentionTurn& turn, const Item& item) {
  Tile tile{.row = item.row,
            .rows = item.rows(),
            .kv_head = item.kv_head,
            .group = item.group,
            .first_head = turn.begin_head(item.kv_head) + item.group * turn.a.tile_heads};
  const int32_t heads = turn.end_head(item.kv_head) - tile.first_head;
  tile.heads = heads < turn.a.tile_heads ? heads : turn.a.tile_heads;
  if (tile.heads <= 0) return tile;
  tile.columns = tile.rows * tile.heads;
  tile.last = item.listed.last;
  tile.table = turn.batch.tables + turn.batch.row_table[item.row] * turn.batch.table_stride;
  tile.slots = slots_of(turn.batch, item.row);
  return tile;
}

__device__ __forceinline__ int warp_index() { return static_cast<int>(threadIdx.x / kWarp); }
__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x % kWarp); }

// Two numbers as two pairs of bf16: what is nearest, and what is left of it.
__device__ __forceinline__ void halve(float first, float second, uint32_t& high, uint32_t& low) {
  const bf16 a = to_bf16(first), b = to_bf16(second);
  const bf16 c = to_bf16(first - to_float(a)), d = to_bf16(second - to_float(b));
  high = a.bits | static_cast<uint32_t>(b.bits) << 16;
  low = c.bits | static_cast<uint32_t>(d.bits) << 16;
}

// The queries as operand b: of column 8 c + lane / 4 the dimensions 2 t, 2 t + 1, + 8, with t = lane % 4.
__device__ __forceinline__ void stage_queries(const AttentionTurn& turn, const Tile& tile, const Room& room,
                                              uint4* q) {
  const int d = turn.layer.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < room.q_words(); i += kThreads) {
    const int lane = i % static_cast<int>(kWarp), c = i / static_cast<int>(kWarp) % room.column_tiles;
    const int dim = i / static_cast<int>(kWarp) / room.column_tiles * kStep + lane % 4 * 2;
    const int column = c * 8 + lane / 4;
    uint4 word{};
    if (column < tile.columns) {
      const float* from = turn.a.q + tile.row_of(column) * turn.a.q_stride + tile.head_of(column) * d;
      if (dim < d) halve(from[dim], from[dim + 1], word.x, word.z);  // head_dim is even
      if (dim + 8 < d) halve(from[dim + 8], from[dim + 9], word.y, word.w);
    }
    q[i] = word;
  }
}

// Keys and values of a block of positions whose slots lie apart, word by word as they would lie in place;
// zeros behind the row's own position.
__device__ __forceinline__ void gather(const AttentionTurn& turn, const Tile& tile, const Room& room,
                                       const Shared& s, int split, int block) {
  const int first = split * kSplitPositions + block * kStep;
  const KvLayer& layer = turn.layer;
  const auto* keys = static_cast<const bf16*>(layer.keys);
  const auto* values = static_cast<const bf16*>(layer.values);
  const auto keys_of = [&](int token, int dim) -> uint32_t {  // of two dimensions
    if (first + token > tile.last) return 0;
    const int32_t slot = tile.slots.slot(first + token);
    return *reinterpret_cast<const uint32_t*>(
        keys + layer.key_offset(tile.table[slot / kStep], tile.kv_head, slot % kStep, dim));
  };
  const auto value_of = [&](int token, int dim) -> uint32_t {
    if (first + token > tile.last) return 0;
    const int32_t slot = tile.slots.slot(first + token);
    return values[layer.value_offset(tile.table[slot / kStep], tile.kv_head, slot % kStep, dim)].bits;
  };
  const int words = room.lanes() * 4;
  for (int i = static_cast<int>(threadIdx.x); i < room.dim_tiles * words; i += kThreads) {
    // As in fragment_offset; and a value's neighbours are tokens t and t + 8 (value_column).
    const int lane = i % words / 4, tile_index = i / words, dim = tile_index * kStep;
    const int row = lane / 4 + i % 2 * 8, column = lane % 4 * 2 + i % 4 / 2 * 8;
    reinterpret_cast<uint32_t*>(s.key_at(room, block, tile_index))[i % words] = keys_of(row, dim + column);
    if (room.is_shared) continue;
    reinterpret_cast<uint32_t*>(s.values +
                                (block * room.value_tiles + tile_index) * room.lanes())[i % words] =
        value_of(column / 2, dim + row) | value_of(column / 2 + 8, dim + row) << 16;
  }
}

// Keys of this warp's KV blocks, then values of its dimensions; two groups of copies. Blocks with slots that
// lie apart are there after a barrier.
__device__ __forceinline__ void fetch(const AttentionTurn& turn, const Tile& tile, const Room& room,
                                      const Shared& s, int split, int blocks) {
  const int first_block = split * kSplitBlocks;
  int in_place = tile.slots.tail_begin / kStep - first_block;
  in_place = in_place < 0 ? 0 : in_place < blocks ? in_place : blocks;
  const auto word = [&](const void* data, int block) {
    const auto* elements = static_cast<const bf16*>(data) +
                           turn.layer.head_offset(tile.table[first_block + block], tile.kv_head);
    return reinterpret_cast<const uint4*>(elements) + lane_index();
  };
  for (int block = warp_index(); block < in_place; block += kWarps) {
    const uint4* from = word(turn.layer.keys, block);
    for (int t = 0; t < room.dim_tiles; ++t)
      copy_async_16(s.key_at(room, block, t) + lane_index(), from + t * room.lanes());
  }
  copy_async_commit();
  for (int block = 0; block < in_place && !room.is_shared; ++block) {
    const uint4* from = word(turn.layer.values, block);
    uint4* to = s.values + block * room.value_tiles * room.lanes() + lane_index();
    for (int t = warp_index(); t < room.value_tiles; t += kWarps)
      copy_async_16(to + t * room.lanes(), from + t * room.lanes());
  }
  copy_async_commit();
  for (int block = in_place; block < blocks; ++block) gather(turn, tile, room, s, split, block);
}

}  // namespace outrider::cuda::attention_tiles
