// Plan of a model's matrices on a device: types, splits and bytes, before any memory is allocated.
#pragma once

#include <optional>
#include <vector>

#include "base/status.h"
#include "kernels/cuda/device_matrix.h"
#include "model/cuda/code_plan.h"
#include "model_files/weight_sources.h"

namespace outrider::cuda {

// Where the columns of a matrix are cut: at the ends of its leaves, or evenly.
Slices slices_of(WeightType type, int64_t k, const std::vector<int64_t>& leaf_ends);

// One DeviceMatrix.
struct MatrixPlan {
  WeightType type = WeightType::kFloat32;
  std::vector<TensorPart> parts;  // one below the other, or
  bool is_wide = false;           // one beside the other
  bool is_paired = false;         // gates and ups: MatrixView::paired
  int64_t n = 0;
  int64_t rows_each = 0;  // from one part's first row to the next one's; 0: its rows
  Slices slices;
  std::optional<CodePlan> codes;  // of kCodes

  int64_t bytes() const;
  // Columns of activations that are put into another order first; 0: none.
  int64_t gathered_columns() const { return codes && !codes->columns.empty() ? slices.k() : 0; }
};

// One below the other: published checkpoints mix forms within what is one matrix here.
using StackPlan = std::vector<MatrixPlan>;

// As `type`; as kCodes every part is what it is stored as: codes, bf16 or fp16.
Result<StackPlan> plan_stack(const MatrixSource& source, WeightType type);
// Plans a matrix of gates with ups below them. Gates and ups are paired where one product can compute both at
// once: where they are one matrix that is not fp32.
Result<StackPlan> plan_gates(const MatrixSource& source, WeightType type);
// Whether the rows of a matrix of n rows can be paired.
constexpr bool can_pair(WeightType type, int64_t n) {
  return type != WeightType::kFloat32 && n > 0 && n % kTileRows == 0;
}
// The matrices of an attention's heads, of one part each, for multiply_heads(): fp32 or bf16, whatever they
// are stored as.
MatrixPlan plan_heads(const std::vector<MatrixSource>& heads, WeightType activation);
// Parts of as many rows each, one beside the other, of one form.
Result<StackPlan> plan_side_by_side(std::vector<TensorPart> parts, const std::vector<int64_t>& leaf_ends,
                                    WeightType type);

}  // namespace outrider::cuda
