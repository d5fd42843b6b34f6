// Quantised weights in safetensors, as `outrider quantize` writes them. A matrix NAME of shape [n, k] becomes
//   NAME         I8 [n, k]            integers of int8, or
//   NAME         U8 [n, (k + 1) / 2]  int4: columns 2i (low half) and 2i + 1 of every byte, each + 8, or
//   NAME         F8_E4M3 [n, k]       fp8
//   NAME.scales  BF16 [n, groups]     weight = code * scale
// A group is 64 consecutive columns for int8 and fp8, 32 for int4. In o_proj and down_proj groups start anew
// at every one of the 8 leaves of the contraction (shard.h), and the last group of a leaf may be shorter.
// Or, in blocks of GGUF, NAME.Q4_K, NAME.Q6_K, NAME.Q5_0 or NAME.Q8_0: U8 [n, bytes of a row].
// Everything else is as in the original. config.json gains {"quantization_config": {"quant_method":
// "outrider", ...}}.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/weight_type.h"
#include "model_files/dtype.h"

namespace outrider {

constexpr const char* kQuantMethod = "outrider";
inline const std::string kScalesSuffix = ".scales";

// The format of a stored matrix of codes; nothing for other types.
constexpr std::optional<WeightType> stored_type(Dtype dtype) {
  if (dtype == Dtype::kI8) return WeightType::kInt8;
  if (dtype == Dtype::kU8) return WeightType::kInt4;
  if (dtype == Dtype::kF8E4M3) return WeightType::kFloat8;
  return std::nullopt;
}
constexpr Dtype stored_dtype(WeightType type) {
  return type == WeightType::kInt8 ? Dtype::kI8 : type == WeightType::kInt4 ? Dtype::kU8 : Dtype::kF8E4M3;
}
inline int64_t stored_columns(WeightType type, int64_t k) {
  return type == WeightType::kInt4 ? (k + 1) / 2 : k;
}
// The end of the name of a matrix in blocks of GGUF (model/block_file.h): ".Q4_K".
inline std::string block_suffix(Dtype type) { return "." + std::string(dtype_name(type)); }
// Groups of the first `leaves` leaves.
int64_t count_groups(WeightType type, const std::vector<int64_t>& leaf_ends, size_t leaves);

}  // namespace outrider
