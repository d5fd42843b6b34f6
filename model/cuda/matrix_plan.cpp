#include "model/cuda/matrix_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/cuda/latent_ops.h"

namespace outrider::cuda {
namespace {

// The type that a part gets on the device, in a model of published codes.
Result<WeightType> own_type(const TensorPart& part) {
  if (part.coded) return WeightType::kCodes;
  if (part.tensor->dtype == Dtype::kBF16) return WeightType::kBFloat16;
  if (part.tensor->dtype == Dtype::kF16 && !part.apart) return WeightType::kFloat16;
  return unsupported(
      fmt::format("{} is {} beside codes of a published checkpoint, which the CUDA kernels do not take; use "
                  "--device cpu, or --weight-format (of a draft model or head: --draft-weight-format) bf16, "
                  "int8, int4 or fp8, which dequantises those",
                  part.tensor->name, dtype_name(part.tensor->dtype)));
}

bool is_of_one_form(const TensorPart& a, const TensorPart& b) {
  if (!a.coded || !b.coded) return !a.coded && !b.coded && a.tensor->dtype == b.tensor->dtype;
  return a.coded->scheme() == b.coded->scheme() && a.coded->k() == b.coded->k() &&
         a.coded->order() == b.coded->order();
}

}  // namespace

Slices slices_of(WeightType type, int64_t k, const std::vector<int64_t>& leaf_ends) {
  return leaf_ends.empty() ? even_slices(k, step_columns(type))
                           : slices_from_ends(leaf_ends, step_columns(type));
}

int64_t MatrixPlan::bytes() const {
  return codes ? DeviceMatrix::bytes_for(codes->form, n, slices, !codes->columns.empty())
               : DeviceMatrix::bytes_for(type, n, slices);
}

Result<StackPlan> plan_stack(const MatrixSource& source, WeightType type) {
  if (type != WeightType::kCodes)
    return StackPlan{{.type = type,
                      .parts = source.parts,
                      .n = source.n(),
                      .slices = slices_of(type, source.k(), source.leaf_ends)}};
  StackPlan stack;
  for (const TensorPart& part : source.parts) {
    if (stack.empty() || !is_of_one_form(stack.back().parts.front(), part)) {
      ASSIGN_OR_RETURN(const WeightType own, own_type(part));
      MatrixPlan plan{.type = own};
      if (part.coded) {
        const CodedPiece piece{part.coded.get(), part.columns};
        ASSIGN_OR_RETURN(plan.codes, plan_codes({&piece, 1}, source.leaf_ends));
      }
      plan.slices = plan.codes ? plan.codes->slices : slices_of(own, source.k(), source.leaf_ends);
      stack.push_back(std::move(plan));
    }
    stack.back().parts.push_back(part);
    stack.back().n += part.rows.size();
  }
  return stack;
}

Result<StackPlan> plan_gates(const MatrixSource& source, WeightType type) {
  ASSIGN_OR_RETURN(StackPlan stack, plan_stack(source, type));
  if (stack.size() == 1) stack.front().is_paired = can_pair(stack.front().type, stack.front().n);
  return stack;
}

MatrixPlan plan_heads(const std::vector<MatrixSource>& heads, WeightType activation) {
  MatrixPlan plan{.type = activation};
  for (const MatrixSource& head : heads) plan.parts.push_back(head.parts.front());
  if (heads.empty()) return plan;
  plan.rows_each = head_rows(heads.front().n());
  plan.n = static_cast<int64_t>(heads.size()) * plan.rows_each;
  plan.slices = slices_of(activation, heads.front().k(), {heads.front().k()});
  return plan;
}

Result<StackPlan> plan_side_by_side(std::vector<TensorPart> parts, const std::vector<int64_t>& leaf_ends,
                                    WeightType type) {
  MatrixPlan plan{.type = type, .is_wide = true, .n = parts.front().rows.size()};
  int64_t k = 0;
  for (const TensorPart& part : parts) k += part.columns.size();
  if (type == WeightType::kCodes) {
    ASSIGN_OR_RETURN(plan.type, own_type(parts.front()));
    for (const TensorPart& part : parts)
      if (!is_of_one_form(parts.front(), part))
        return unsupported(fmt::format(
            "{} and {} are quantised differently, and CUDA devices multiply all experts as one matrix; use "
            "--device cpu, or --weight-format (of a draft model or head: --draft-weight-format) bf16, int8, "
            "int4 or fp8, which dequantises them while loading",
            parts.front().tensor->name, part.tensor->name));
  }
  if (plan.type == WeightType::kCodes) {
    std::vector<CodedPiece> pieces;
    for (const TensorPart& part : parts) pieces.push_back({part.coded.get(), part.columns});
    ASSIGN_OR_RETURN(plan.codes, plan_codes(pieces, leaf_ends));
  }
  plan.slices = plan.codes ? plan.codes->slices : slices_of(plan.type, k, leaf_ends);
  plan.parts = std::move(parts);
  StackPlan stack;
  stack.push_back(std::move(plan));
  return stack;
}

}  // namespace outrider::cuda
