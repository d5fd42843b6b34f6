// A weight matrix [n, k] in the layout the CPU kernels stream: tiles of 16 output columns, so that a vector
// lane is an output and every output keeps its own accumulator. A kernel reads one to four tiles at a time,
// each from start to end. Padding is zero.
//   fp32  data[tile][k][16]
//   bf16  data[tile][k / 2][16][2]
//   int8  data[tile][k / 4][16][4] of weight + 128, then scales[tile][group][16] of bf16
//   int4  data[tile][k / 8][16][4] bytes, then the same scales; byte j holds weights j (low half) and j + 4
//   of
//         its eight columns, each + 8
// (fp8 is computed on CUDA devices only; here it has groups but no kernel.)
//   codes (quant_scheme.h)  data[tile][k / 8][16] words of eight 4-bit codes, or [k / 4][16] of four bytes,
//   the
//         first column in the lowest bits; then what groups of columns share (CodeLayout)
// Quantised formats are symmetric: a weight is integer * scale, one scale per output and group of columns.
// Groups start anew at every leaf (shard.h), so that no scale depends on how leaves are spread over ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/bfloat16.h"
#include "base/buffer.h"
#include "transformer/ops/quant_scheme.h"

namespace outrider {

constexpr int64_t kTileColumns = 16;

enum class WeightType : uint8_t {
  kFloat32,
  kBFloat16,
  kInt8,
  kInt4,
  kFloat8,
  kCodes,  // of a QuantScheme, multiplied as the fp32 numbers they stand for
};

// Whether inputs are quantised too, group by group.
constexpr bool is_quantized(WeightType type) {
  return type == WeightType::kInt8 || type == WeightType::kInt4 || type == WeightType::kFloat8;
}

// Columns that share a scale: 8.25 and 4.5 bits a weight.
constexpr int64_t group_columns(WeightType type) {
  return type == WeightType::kInt4 ? 32 : is_quantized(type) ? 64 : 0;
}
constexpr int64_t kMaxGroupColumns = 64;

// Columns are padded to a multiple of this, leaf by leaf.
constexpr int64_t column_alignment(WeightType type) {
  return type == WeightType::kInt4 ? 8 : is_quantized(type) ? 4 : 2;
}

// Not of kCodes, whose scheme says it.
constexpr int64_t weight_bits(WeightType type) {
  constexpr int64_t kBits[]{32, 16, 8, 4, 8};
  return kBits[static_cast<int>(type)];
}

// Where codes and the numbers of their groups lie in a tile. Each kind of number is [group][16].
struct CodeLayout {
  // Columns [begin, begin + count) of a leaf share the numbers of `group` and of `outer`, the groups
  // together.
  struct Run {
    int32_t begin = 0, count = 0;
    int32_t group = 0, outer = 0;
  };
  QuantScheme scheme;
  std::vector<Run> runs;                // of all leaves, in the order of their columns
  std::vector<int64_t> first_run;       // of each leaf, and the end
  int64_t first_group = 0, groups = 0;  // that these columns use, of the matrix in its file
  int64_t first_outer = 0, outers = 0;
  // Offsets in a tile; scales are codes (int8) where nested.
  int64_t scales = 0, zeros = 0, minima = 0, outer_scales = 0, outer_minima = 0, end = 0;

  int64_t word_columns() const { return 32 / code_bits(scheme.code); }
};

// Columns of a matrix of codes that a PackedMatrix takes over: [first, first + k) of it.
struct CodedColumns {
  QuantScheme scheme;
  int64_t first = 0;
  std::span<const int32_t> order;  // of the whole matrix; empty: neighbours are grouped
  int64_t groups = 0;              // of the whole matrix
};

class PackedMatrix {
 public:
  // Columns [begin, end) of the matrix stand at [packed, packed + padded size) of a tile.
  struct Leaf {
    int64_t begin = 0, end = 0;
    int64_t packed = 0;
    int64_t packed_size = 0;
    int64_t first_group = 0;
  };
  struct Group {
    int64_t begin = 0, end = 0;
    int64_t packed = 0;
  };

  PackedMatrix() = default;
  // leaf_ends: where each leaf of this rank ends along k, ascending, the last one k. One leaf when tensor
  // parallelism does not cut this contraction.
  PackedMatrix(WeightType type, int64_t n, int64_t k, const std::vector<int64_t>& leaf_ends);
  // The same of codes.
  PackedMatrix(const CodedColumns& columns, int64_t n, int64_t k, const std::vector<int64_t>& leaf_ends);

  WeightType type() const { return type_; }
  int64_t n() const { return n_ + n_below_; }
  int64_t k() const { return k_; }
  int64_t packed_k() const { return packed_k_; }
  // Rows in another form below the first own_n(), which all else here tells of; published checkpoints mix
  // forms within what is one matrix here.
  void stack(PackedMatrix below);
  int64_t own_n() const { return n_; }
  std::span<const PackedMatrix> below() const { return below_; }
  int64_t tiles() const { return (n_ + kTileColumns - 1) / kTileColumns; }
  // Bytes of `columns` columns of a tile.
  int64_t bytes_of(int64_t columns) const { return columns * kTileColumns * bits() / 8; }
  int64_t tile_bytes() const { return tile_bytes_; }
  int64_t scales_offset() const { return bytes_of(packed_k_); }  // in a tile
  std::span<const Leaf> leaves() const { return leaves_; }
  std::span<const Group> groups() const { return groups_; }  // of all leaves in order; none unless quantised
  const std::byte* tile(int64_t t) const { return data_.data() + t * tile_bytes_; }
  std::byte* tile(int64_t t) { return data_.data() + t * tile_bytes_; }
  size_t bytes() const;                                     // with what is below
  const CodeLayout* codes() const { return codes_.get(); }  // null unless kCodes

  // Element (row, column) of the matrix, as stored.
  float at(int64_t row, int64_t column) const;
  void copy_row(int64_t row, std::span<float> to) const;

 private:
  int64_t bits() const { return codes_ ? code_bits(codes_->scheme.code) : weight_bits(type_); }
  void add_leaves(const std::vector<int64_t>& leaf_ends, int64_t alignment);
  void plan_codes(const CodedColumns& columns);
  void copy_codes(int64_t row, std::span<float> to) const;  // of an own row of codes, as a whole

  WeightType type_ = WeightType::kFloat32;
  int64_t n_ = 0;
  int64_t k_ = 0;
  int64_t packed_k_ = 0;
  int64_t tile_bytes_ = 0;
  std::vector<Leaf> leaves_;
  std::vector<Group> groups_;
  std::unique_ptr<CodeLayout> codes_;
  Buffer<std::byte> data_;
  std::vector<PackedMatrix> below_;
  int64_t n_below_ = 0;
};

}  // namespace outrider
