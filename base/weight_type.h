// How a weight is held: numbers, our own quantised formats, or codes of published ones.
#pragma once

#include <cstdint>

namespace outrider {

enum class WeightType : uint8_t {
  kFloat32,
  kBFloat16,
  kInt8,
  kInt4,
  kFloat8,
  kCodes,    // of a QuantScheme: their exact numbers, times inputs rounded to bf16 (matmul_codes.cpp)
  kFloat16,  // on the CPU; inputs stay fp32
};

// Whether inputs, and keys and values by default, stay fp32.
constexpr bool is_wide(WeightType type) {
  return type == WeightType::kFloat32 || type == WeightType::kFloat16;
}

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
  constexpr int64_t kBits[]{32, 16, 8, 4, 8, 0, 16};
  return kBits[static_cast<int>(type)];
}

}  // namespace outrider
