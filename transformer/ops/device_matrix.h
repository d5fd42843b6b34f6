// Weight matrices in device memory: where an element lies, how rows get there, and what they take.
#pragma once

#include <cstdint>

#include "base/cuda.h"
#include "transformer/ops/cuda_layout.h"
#include "transformer/ops/packed_matrix.h"
#include "transformer/ops/weight_codes.h"

namespace outrider::cuda {

// Columns of a step of the contraction: one group of codes of eight bits, one matrix instruction otherwise.
constexpr int step_columns(WeightType type) { return is_quantized(type) ? kGroupStep : kStep; }

// A weight matrix [n, k]: fp32, bf16, or codes of eight bits (int8, fp8) with one scale per row and step.
struct MatrixView {
  WeightType type = WeightType::kFloat32;
  void* data = nullptr;
  bf16* scales = nullptr;  // scale_offset; of codes only
  int32_t n = 0;
  int32_t padded_n = 0;
  Slices slices;
};

OUTRIDER_SHARED_CODE inline int64_t element_offset(const MatrixView& m, int32_t row, int32_t column) {
  if (m.type == WeightType::kFloat32) return transposed_offset(m.padded_n, row, column);
  return m.type == WeightType::kBFloat16 ? tiled_offset(m.slices, row, column)
                                         : code_offset(m.slices, row, column);
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
// the same type. With codes their scales are packed apart.
void pack_rows(StreamView stream, const MatrixView& to, int64_t first_row, int64_t rows, const void* staged);
// staged: [rows, steps].
void pack_scales(StreamView stream, const MatrixView& to, int64_t first_row, int64_t rows,
                 const bf16* staged);
// Numbers into codes and scales, with the bits of quantize_group; staged: fp32 or bf16, as `from` says.
void quantize_rows(StreamView stream, const MatrixView& to, int64_t first_row, int64_t rows, WeightType from,
                   const void* staged);
// Reproducible noise of the given scale instead of weights: for timing without files.
void fill_noise(StreamView stream, const MatrixView& to, uint64_t seed, float scale);

}  // namespace outrider::cuda
