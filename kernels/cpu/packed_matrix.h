// A weight matrix [n, k] in the layout the CPU kernels stream: tiles of 16 output columns, so that a vector
// lane is an output and every output keeps its own accumulator. A kernel reads one to four tiles at a time,
// each from start to end. Padding is zero.
//   fp32  data[tile][k][16]
//   fp16  data[tile][k][16], multiplied as the fp32 numbers that they are, with the bits of fp32
//   bf16  data[tile][k / 2][16][2]
//   int8  data[tile][k / 4][16][4] of weight + 128, then scales[tile][group][16] of bf16
//   int4  data[tile][k / 8][16][4] bytes, then the same scales; byte j holds weights j (low half) and j + 4
//   of
//         its eight columns, each + 8
// (fp8 is computed on CUDA devices only; here it has groups but no kernel.)
//   codes (quant_scheme.h)  4 bits: data[tile][k / 8][16] words; bits 4i of a word hold column 2i of its
//   eight,
//         bits 16 + 4i column 2i + 1. 8 bits: data[tile][k / 2][16][2] bytes. Columns are in the order of
//         runs (CodeLayout), and behind them lies what groups of columns share
//   codes for int8 inputs  4 bits: as int4, 8 bits: as int8, both without the constant added.
//         6 bits: of every 16 columns the lower 4 bits as 4-bit codes (2 lines of 64 bytes), then a line of
//         the upper 2: bits 2q of byte j are those of column 4q + j. 5 bits: the same of every 32 columns, 4
//         lines and one: bit q of byte j is that of column 4q + j
// Quantised formats are symmetric: a weight is integer * scale, one scale per output and group of columns.
// Groups start anew at every leaf (shard.h), so that no scale depends on how leaves are spread over ranks.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/bfloat16.h"
#include "base/buffer.h"
#include "base/quant_scheme.h"
#include "base/weight_type.h"

namespace outrider {

constexpr int64_t kTileColumns = 16;

// Where codes and the numbers of their groups lie in a tile. Each kind of number is [group][16].
//
// The columns of a leaf that share numbers are a run: they lie side by side, in their order, and are filled
// up to whole lines with codes whose inputs are zero.
struct CodeLayout {
  struct Run {
    int32_t packed = 0, columns = 0;  // in a tile, with what fills the run up
    int32_t group = 0, outer = 0;     // whose numbers they share; outer: the groups together
  };
  QuantScheme scheme;
  ActivationFormat activations = ActivationFormat::kBFloat16;
  int64_t bits = 0;                // of a code in a tile: 4 or 8, with int8 inputs 5 or 6 as well
  std::vector<Run> runs;           // of all leaves, in the order of their columns in a tile
  std::vector<int64_t> first_run;  // of each leaf, and the end
  // The matrix' column at every column of a tile, -1 where a run is filled up. Empty: the same, but for what
  // fills up the last run.
  std::vector<int32_t> columns;
  int64_t first_group = 0, groups = 0;  // that these columns use, of the matrix in its file
  int64_t first_outer = 0, outers = 0;
  // Offsets in a tile; scales and minima are codes (int8) where nested.
  int64_t scales = 0, zeros = 0, minima = 0, outer_scales = 0, outer_minima = 0, end = 0;
  // 4-bit codes: what each is multiplied as (its number less number_base), as bf16, twice.
  alignas(64) std::array<uint16_t, 32> numbers{};

  // A run is filled up to a multiple of so many columns: those of a line of 64 bytes, or of the lines that
  // belong together.
  int64_t line_columns() const { return bits == 5 ? 32 : bits == 6 ? 16 : 32 / bits; }
  // Taken from the number of a code before it is multiplied; the rest of a stored zero is taken from the sum.
  int32_t number_base() const {
    if (scheme.zero_type == ZeroType::kConstant) return scheme.zero;
    if (scheme.zero_type == ZeroType::kMinimum) return 0;
    return scheme.code == CodeType::kUnsigned4 ? 8 : scheme.code == CodeType::kUnsigned8 ? 128 : 0;
  }
  // Whether products need the sum of every run's inputs.
  bool has_input_sums() const { return scheme.zero_type != ZeroType::kConstant; }
};

// Where a column of eight has its 4 bits in their word.
constexpr int shift_of_nibble(int64_t column) {
  return static_cast<int>(column % 2 * 16 + column % 8 / 2 * 4);
}

// Columns of a matrix of codes that a PackedMatrix takes over: [first, first + k) of it.
struct CodedColumns {
  QuantScheme scheme;
  ActivationFormat activations = ActivationFormat::kBFloat16;  // kInt8 only if takes_int8_inputs()
  int64_t bits = 0;                                            // CodedMatrix::bits(); 0: those of the type
  int64_t first = 0;
  std::span<const int32_t> order;  // of the whole matrix; empty: neighbours are grouped
  int64_t groups = 0;              // of the whole matrix

  int64_t group_of(int64_t column) const {  // `column` counts from `first`
    return order.empty() ? (first + column) / scheme.group
                         : int64_t{order[static_cast<size_t>(first + column)]};
  }
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
  // A matrix of codes.
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
  // kInt4 as the codes that its tiles hold, for kernels of codes; null for other types. The zero is -1, since
  // LeafJob::input_offsets of kInt4 are the sums of the inputs times -8.
  const CodeLayout* int4_codes() const { return int4_codes_.get(); }

  // Element (row, column) of the matrix, as stored.
  float at(int64_t row, int64_t column) const;
  void copy_row(int64_t row, std::span<float> to) const;

 private:
  int64_t bits() const { return codes_ ? codes_->bits : weight_bits(type_); }
  void add_leaves(const std::vector<int64_t>& leaf_ends, int64_t alignment);
  void plan_int4_codes();
  void plan_codes(const CodedColumns& columns);
  void add_runs(Leaf& leaf, const CodedColumns& columns);
  void copy_codes(int64_t row, std::span<float> to) const;  // of an own row of codes, as a whole

  WeightType type_ = WeightType::kFloat32;
  int64_t n_ = 0;
  int64_t k_ = 0;
  int64_t packed_k_ = 0;
  int64_t tile_bytes_ = 0;
  std::vector<Leaf> leaves_;
  std::vector<Group> groups_;
  std::unique_ptr<CodeLayout> codes_, int4_codes_;
  Buffer<std::byte> data_;
  std::vector<PackedMatrix> below_;
  int64_t n_below_ = 0;
};

}  // namespace outrider
