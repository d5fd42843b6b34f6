// From rows as files hold them to tiles as kernels read them.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "kernels/cpu/packed_matrix.h"
#include "model_files/coded_matrix.h"
#include "model_files/dtype.h"

namespace outrider {

// One row of a stored matrix, from this rank's first column on; of any alignment.
// With `coded`: columns of a row of it, from `first` on. Else:
//   kF32, kBF16, kF16: numbers       kI8: int8 integers       kU8: int4, two columns a byte (low half first)
//   + 8
// Integers come with one bf16 scale per group of this rank's columns.
struct SourceRow {
  const std::byte* data = nullptr;    // null: a row of zeros
  const std::byte* scales = nullptr;  // integers only
  Dtype dtype = Dtype::kF32;
  const CodedMatrix* coded = nullptr;
  int64_t row = 0, first = 0;  // in it
  // From column to column of a transposed matrix, in bytes; 0: they are neighbours. With `coded`: in
  // elements, of which `row` is the first.
  int64_t step = 0;

  bool is_zero() const { return !data && !coded; }
};

// Reads columns [begin, begin + to.size()) of a row as floats. Codes of a published checkpoint are decoded.
void read_floats(const SourceRow& row, int64_t begin, std::span<float> to);

// Fills tile `tile` of the matrix. Integers only into a matrix of the same format, and into one of codes only
// rows of its scheme and order.
void pack_tile(PackedMatrix& to, int64_t tile, const std::array<SourceRow, kTileColumns>& rows);

// The numbers that the row has in a packed matrix of the type, with leaves that end there (packed_matrix.h).
// kCodes: of the row as it is stored, codes or numbers.
void read_row(const SourceRow& row, WeightType type, std::span<const int64_t> leaf_ends, std::span<float> to);

}  // namespace outrider
