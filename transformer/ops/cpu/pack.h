// From rows as files hold them to tiles as kernels read them.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "transformer/files/dtype.h"
#include "transformer/ops/cpu/packed_matrix.h"

namespace outrider {

// One row of a stored matrix, from this rank's first column on; of any alignment.
//   kF32, kBF16, kF16: numbers       kI8: int8 integers       kU8: int4, two columns a byte (low half first)
//   + 8
// Integers come with one bf16 scale per group of this rank's columns.
struct SourceRow {
  const std::byte* data = nullptr;    // null: a row of zeros
  const std::byte* scales = nullptr;  // integers only
  Dtype dtype = Dtype::kF32;
};

// Columns [begin, begin + to.size()) of a row of numbers.
void read_floats(const SourceRow& row, int64_t begin, std::span<float> to);

// Fills tile `tile` of the matrix. Integers only into a matrix of the same format.
void pack_tile(PackedMatrix& to, int64_t tile, const std::array<SourceRow, kTileColumns>& rows);

}  // namespace outrider
