// How a product of more than 16 rows, or of fewer that shared memory does not hold, is cut into blocks, and
// what room there is for slices that meet in memory: for what launches products, for memory plans, for tests
// and for expected times. No bit depends on it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/packed_matrix.h"
#include "kernels/cuda/cuda_layout.h"

namespace outrider::cuda {

constexpr int kFewRows = 16;                  // more are matmul_wide.cu's
constexpr int kWideTileRows = 8 * kTileRows;  // weight rows of a block

// Limits of rows, and of tiles of weight rows, of a product whose contraction is split over blocks.
constexpr int64_t kSplitRows = 128, kSplitTiles = 512;
constexpr int64_t kSplitCounters = kSplitRows / 64 * kSplitTiles;
// Floats of workspace of such a product; 0 where it is never split.
constexpr int64_t split_floats(int64_t rows, int64_t n) {
  const int64_t tiles = (n + kTileRows - 1) / kTileRows, most = std::min(rows, kSplitRows);
  const int64_t room = most <= 32 ? 32 : (most + 63) / 64 * 64;
  return tiles > kSplitTiles ? 0 : kMaxSlices * room * tiles * kTileRows;
}

struct WideProduct {
  int rows = 0;                 // of a block, of activations
  bool is_over_blocks = false;  // a block has one slice of the contraction; else all slices
  int64_t blocks = 0;
};

// Shared memory of a block that holds 9 to 16 rows of activations whole (k columns), its 8 warps' copies of
// weights and scales, and the parts of a row tile.
constexpr int64_t staged_bytes(WeightType type, int64_t k) {
  const bool is_codes = is_quantized(type);
  const int64_t scales = type == WeightType::kInt4 ? 6 << 10 : is_codes ? 3 << 9 : 0;
  return (48 << 10) + scales + (10 << 10) + kFewRows * 2 * ((k + 63) / 64 * 64 + (is_codes ? 32 : 16));
}

// With more rows than this, nearly every expert of a mixture is chosen by some row.
constexpr int64_t kRowsOfAllExperts = 64;

// Blocks of 128, 64 or 32 rows: those with which the busiest multiprocessor reads least, which is what such
// products wait for. Where blocks of all slices leave more than a quarter of the multiprocessors idle, slices
// are spread over blocks (`may_split`). `weight_bits`: of one weight, without what a group shares.
constexpr WideProduct choose_wide_product(int64_t rows, int64_t n, int slices, int multiprocessors,
                                          int weight_bits, bool may_split) {
  const int64_t groups = (n + kWideTileRows - 1) / kWideTileRows;
  if (rows <= kFewRows) return {kFewRows, false, groups};
  const auto blocks_of = [&](int tile) { return groups * ((rows + tile - 1) / tile); };
  const int least = rows <= 32 ? 32 : 64;
  if (may_split && 4 * blocks_of(least) < 3 * int64_t{multiprocessors})
    return {least, true, blocks_of(least) * slices};
  const auto bits_of = [&](int tile) {  // of a column
    const int64_t in_turn = (blocks_of(tile) + multiprocessors - 1) / multiprocessors;
    return in_turn * (kWideTileRows * weight_bits + tile * 16);
  };
  int best = 32;
  for (const int tile : {64, 128})
    if (bits_of(tile) <= bits_of(best)) best = tile;
  return {best, false, blocks_of(best)};
}

}  // namespace outrider::cuda
