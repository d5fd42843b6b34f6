// Weights as codes: a group of neighbouring weights of one row shares a scale, and a weight is
// number * scale. Shared by host and device, so that both quantise to the same bits.
//   int8: whole numbers in [-127, 127], two's complement      fp8: e4m3 (base/float8.h)
//   int4: whole numbers in [-8, 7], plus 8
#pragma once

#include <cstdint>

#include "base/bfloat16.h"
#include "base/float8.h"
#include "base/shared_code.h"
#include "kernels/cpu/packed_matrix.h"

namespace outrider {

// The scale of a group: its largest magnitude over the largest code, rounded up, so that no weight is cut.
// With int4 `magnitude` has the sign of the largest weight, which becomes -8.
OUTRIDER_SHARED_CODE inline bf16 scale_of_group(WeightType type, float magnitude) {
  if (type == WeightType::kInt4) return to_bf16(magnitude / -8.0f);
  const float scale = magnitude / (type == WeightType::kInt8 ? 127.0f : kLargestE4m3);
  return {static_cast<uint16_t>((std::bit_cast<uint32_t>(scale) + 0xffff) >> 16)};
}

OUTRIDER_SHARED_CODE inline float inverse_of_scale(bf16 scale) {
  return scale.bits == 0 ? 0.0f : 1.0f / to_float(scale);
}

OUTRIDER_SHARED_CODE inline uint8_t code_of_weight(WeightType type, float weight, float inverse_scale) {
  const float scaled = weight * inverse_scale;
  if (type == WeightType::kFloat8) return to_e4m3(scaled);
  const bool is_int4 = type == WeightType::kInt4;
  const float low = is_int4 ? -8.0f : -127.0f, high = is_int4 ? 7.0f : 127.0f;
  const float inside = scaled > high ? high : scaled < low ? low : scaled;
  const float whole = (inside + 0x1.8p23f) - 0x1.8p23f;  // to nearest, ties to even
  return static_cast<uint8_t>(static_cast<int32_t>(whole) + (is_int4 ? 8 : 0));
}

OUTRIDER_SHARED_CODE inline float number_of_code(WeightType type, uint8_t code) {
  if (type == WeightType::kInt4) return static_cast<float>(static_cast<int32_t>(code) - 8);
  return type == WeightType::kFloat8 ? e4m3_to_float(code) : static_cast<float>(static_cast<int8_t>(code));
}

}  // namespace outrider
