// A weight matrix [n, k] in the layout the CPU kernels stream: tiles of 16 output columns, so that a vector
// lane is an output and every output keeps its own accumulator. A kernel reads one to four tiles at a time,
// each from start to end. Padding is zero.
//   bf16: data[tile][k / 2][16][2]      fp32: data[tile][k][16]
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/bfloat16.h"
#include "base/buffer.h"

namespace outrider {

constexpr int64_t kTileColumns = 16;

enum class WeightType : uint8_t { kFloat32, kBFloat16 };

class PackedMatrix {
 public:
  PackedMatrix() = default;
  // leaf_ends: where each leaf of this rank ends along k, ascending, the last one k. One leaf when tensor
  // parallelism does not cut this contraction.
  PackedMatrix(WeightType type, int64_t n, int64_t k, std::vector<int64_t> leaf_ends);

  WeightType type() const { return type_; }
  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  int64_t padded_k() const { return round_up(k_, 2); }
  int64_t tiles() const { return (n_ + kTileColumns - 1) / kTileColumns; }
  // Bytes of one column of a tile (half a pair for bf16).
  int64_t column_bytes() const { return kTileColumns * (type_ == WeightType::kBFloat16 ? 2 : 4); }
  int64_t tile_bytes() const { return padded_k() * column_bytes(); }
  const std::vector<int64_t>& leaf_ends() const { return leaf_ends_; }
  const std::byte* tile(int64_t t) const { return data_.data() + t * tile_bytes(); }
  size_t bytes() const { return data_.bytes(); }

  // Element (row, column) of the matrix, as stored.
  float at(int64_t row, int64_t column) const {
    return type_ == WeightType::kBFloat16
               ? to_float(reinterpret_cast<const bf16*>(data_.data())[offset(row, column)])
               : reinterpret_cast<const float*>(data_.data())[offset(row, column)];
  }
  void set(int64_t row, int64_t column, float value) {
    if (type_ == WeightType::kBFloat16)
      reinterpret_cast<bf16*>(data_.data())[offset(row, column)] = to_bf16(value);
    else
      reinterpret_cast<float*>(data_.data())[offset(row, column)] = value;
  }

 private:
  int64_t offset(int64_t row, int64_t column) const {
    const int64_t tile_elements = padded_k() * kTileColumns;
    const int64_t base = row / kTileColumns * tile_elements;
    const int64_t lane = row % kTileColumns;
    if (type_ == WeightType::kBFloat16) return base + column / 2 * (2 * kTileColumns) + lane * 2 + column % 2;
    return base + column * kTileColumns + lane;
  }

  WeightType type_ = WeightType::kFloat32;
  int64_t n_ = 0;
  int64_t k_ = 0;
  std::vector<int64_t> leaf_ends_{0};
  Buffer<std::byte> data_;
};

}  // namespace outrider
