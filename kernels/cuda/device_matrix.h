// Weight matrices in device memory: where an element lies, how rows get there, and what they take.
#pragma once

#include <cstdint>
#include <span>

#include "base/cuda.h"
#include "kernels/cpu/packed_matrix.h"
#include "kernels/cpu/weight_codes.h"
#include "kernels/cuda/code_form.h"
#include "kernels/cuda/cuda_layout.h"

namespace outrider::cuda {

// Columns of a step of the contraction: four matrix instructions of codes, one otherwise.
constexpr int step_columns(WeightType type) {
  return is_quantized(type) || type == WeightType::kCodes ? kGroupStep : kStep;
}

// A weight matrix [n, k]: fp32, bf16, fp16, codes (int8, fp8, int4) with one scale per row and group of
// columns, or those of a published checkpoint (CodeForm).
struct MatrixView {
  WeightType type = WeightType::kFloat32;
  void* data = nullptr;
  bf16* scales = nullptr;  // of codes only; with a CodeForm, its words
  int32_t n = 0;
  int32_t padded_n = 0;
  Slices slices;
  CodeForm form;  // of kCodes
  // Where columns are not in their order, or filled up: which input each takes, -1 for none. Then `slices` is
  // of the columns as they lie here. Null: they are in order.
  const int32_t* columns = nullptr;
  // Above 0, and then half of n and a multiple of 8: rows r and paired + r, a gate and its up, are in one
  // tile, as its rows r % 8 and r % 8 + 8, so that one lane has the sums of both.
  int32_t paired = 0;

  OUTRIDER_SHARED_CODE int32_t place_of_row(int32_t row) const {
    if (paired == 0) return row;
    const int32_t pair = row % paired;
    return pair / 8 * 16 + pair % 8 + (row >= paired ? 8 : 0);
  }
  // Two codes a byte.
  OUTRIDER_SHARED_CODE bool is_half_bytes() const {
    return type == WeightType::kInt4 || (type == WeightType::kCodes && form.is_half_bytes());
  }
  OUTRIDER_SHARED_CODE int32_t group_size() const { return is_half_bytes() ? kGroupStep / 2 : kGroupStep; }
  OUTRIDER_SHARED_CODE int32_t groups() const { return count_groups(slices, group_size()); }
  OUTRIDER_SHARED_CODE int64_t scale_at(int32_t row, const CodeGroup& group) const {
    return scale_offset(slices, row, group.step, kGroupStep / group_size(), group.index);
  }
};

// In elements; of codes of four bits in halves of bytes.
OUTRIDER_SHARED_CODE inline int64_t element_offset(const MatrixView& m, int32_t row, int32_t column) {
  if (m.type == WeightType::kFloat32) return transposed_offset(m.padded_n, row, column);
  if (m.type == WeightType::kBFloat16 || m.type == WeightType::kFloat16)
    return tiled_offset(m.slices, row, column);
  if (m.is_half_bytes()) return half_byte_offset(m.slices, row, column);
  return m.type == WeightType::kCodes && m.form.unit == 16 ? quarter_code_offset(m.slices, row, column)
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
  // A matrix of kCodes. columns: MatrixView::columns, empty where they are in order.
  DeviceMatrix(const CodeForm& form, int64_t n, const Slices& slices, std::span<const int32_t> columns,
               StreamView stream);
  // Before it is filled: MatrixView::paired. Not of fp32.
  void pair_rows();
  const MatrixView& view() const { return view_; }
  int64_t bytes() const { return memory_.size(); }
  static int64_t bytes_for(WeightType type, int64_t n, const Slices& slices);
  static int64_t bytes_for(const CodeForm& form, int64_t n, const Slices& slices, bool has_columns);

 private:
  MatrixView view_;
  DeviceBuffer<std::byte> memory_;
};

// weights[first_row + r, c] = staged[r, c] for r < rows, all k columns; staged is row-major device memory of
// the same type (codes of four bits: two columns a byte, low half first). With codes their scales are packed
// apart.
void pack_rows(StreamView stream, const MatrixView& to, int64_t first_row, int64_t rows, const void* staged);
// staged: [rows, groups].
void pack_scales(StreamView stream, const MatrixView& to, int64_t first_row, int64_t rows,
                 const bf16* staged);
// The words of a CodeForm; staged: [rows, steps, words].
void pack_words(StreamView stream, const MatrixView& to, int64_t first_row, int64_t rows,
                const uint16_t* staged);
// Numbers into codes and scales, with the bits of quantize_group; staged: fp32 or bf16, as `from` says.
void quantize_rows(StreamView stream, const MatrixView& to, int64_t first_row, int64_t rows, WeightType from,
                   const void* staged);
// Reproducible noise of the given scale instead of weights: for timing without files. With a CodeForm codes
// alone.
void fill_noise(StreamView stream, const MatrixView& to, uint64_t seed, float scale);

}  // namespace outrider::cuda
