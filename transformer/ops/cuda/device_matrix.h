// Weight matrices in device memory: where an element lies, how rows get there, and what they take.
#pragma once

#include <cstdint>

#include "base/cuda.h"
#include "transformer/ops/cpu/packed_matrix.h"
#include "transformer/ops/cuda/cuda_layout.h"
#include "transformer/ops/weight_codes.h"

namespace outrider::cuda {

// Columns of a step of the contraction: four matrix instructions of codes, one otherwise.
constexpr int step_columns(WeightType type) { return is_quantized(type) ? kGroupStep : kStep; }

// A weight matrix [n, k]: fp32, bf16, or codes (int8, fp8, int4) with one scale per row and group of columns.
struct MatrixView {
  WeightType type = WeightType::kFloat32;
  void* data = nullptr;
  bf16* scales = nullptr;  // of codes only
  int32_t n = 0;
  int32_t padded_n = 0;
  Slices slices;

  OUTRIDER_SHARED_CODE int32_t group_size() const {
    return type == WeightType::kInt4 ? kGroupStep / 2 : kGroupStep;
  }
  OUTRIDER_SHARED_CODE int32_t groups() const { return count_groups(slices, group_size()); }
  OUTRIDER_SHARED_CODE int64_t scale_at(int32_t row, const CodeGroup& group) const {
    return scale_offset(slices, row, group.step, kGroupStep / group_size(), group.index);
  }
};

// In elements; of int4 in halves of bytes.
OUTRIDER_SHARED_CODE inline int64_t element_offset(const MatrixView& m, int32_t row, int32_t column) {
  if (m.type == WeightType::kFloat32) return transposed_offset(m.padded_n, row, column);
  if (m.type == WeightType::kBFloat16) return tiled_offset(m.slices, row, column);
  return m.type == WeightType::kInt4 ? half_byte_offset(m.slices, row, column)
                                     : code_offset(m.slices, row, column);
}

// Bytes of one row of `columns` elements, as files and staging memory hold it.
constexpr int64_t row_bytes(WeightType type, int64_t columns) {
  return (columns * weight_bits(type) + 7) / 8;
}

class DeviceMatrix {
 public:
  DeviceMatrix() = default;
  // slices: in steps of step_columns(type).
  DeviceMatrix(WeightType type, int64_t n, const Slices& slices);
  const MatrixView& view() const { return view_; }
  int64_t bytes() const { return memory_.size(); }
  static int64_t bytes_for(WeightType type, int64_t n, const Slices& slices);

 private:
  MatrixView view_;
  DeviceBuffer<std::byte> memory_;
};

// weights[first_row + r, c] = staged[r, c] for r < rows, all k columns; staged is row-major device memory of
// the same type (int4: two columns a byte, low half first). With codes their scales are packed apart.
void pack_rows(StreamView stream, const MatrixView& to, int64_t first_row, int64_t rows, const void* staged);
// staged: [rows, groups].
void pack_scales(StreamView stream, const MatrixView& to, int64_t first_row, int64_t rows,
                 const bf16* staged);
// Numbers into codes and scales, with the bits of quantize_group; staged: fp32 or bf16, as `from` says.
void quantize_rows(StreamView stream, const MatrixView& to, int64_t first_row, int64_t rows, WeightType from,
                   const void* staged);
// Reproducible noise of the given scale instead of weights: for timing without files.
void fill_noise(StreamView stream, const MatrixView& to, uint64_t seed, float scale);

}  // namespace outrider::cuda
