#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/quantize.cpp"
#include <hwy/foreach_target.h>  // first: it re-includes this file for every instruction set

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/log.h"
#include "kernels/cpu/quantize.h"
#include "kernels/cpu/weight_codes.h"

HWY_BEFORE_NAMESPACE();
namespace outrider {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using F = hn::CappedTag<float, 16>;
constexpr int64_t kLanes = hn::MaxLanes(F());

HWY_INLINE bf16 round_up_to_bf16(float value) {
  return {static_cast<uint16_t>((std::bit_cast<uint32_t>(value) + 0xffff) >> 16)};
}

bf16 quantize(WeightType type, std::span<const float> weights, int8_t* integers) {
  const F f;
  HWY_ALIGN float values[kMaxGroupColumns] = {};
  std::memcpy(values, weights.data(), weights.size_bytes());
  auto largest = hn::Zero(f), highest = hn::Zero(f);
  for (int64_t i = 0; i < kMaxGroupColumns; i += kLanes) {
    const auto v = hn::Load(f, values + i);
    largest = hn::Max(largest, hn::Abs(v));
    highest = hn::Max(highest, v);
  }
  const float magnitude = hn::GetLane(hn::MaxOfLanes(f, largest));
  const bool positive = hn::GetLane(hn::MaxOfLanes(f, highest)) == magnitude;
  const bool is_int8 = type == WeightType::kInt8;
  const bf16 scale =
      is_int8 ? round_up_to_bf16(magnitude / 127) : to_bf16((positive ? magnitude : -magnitude) / -8);
  const float inverse = magnitude == 0 ? 0 : 1 / to_float(scale);
  const auto low = hn::Set(f, is_int8 ? -127.0f : -8.0f), high = hn::Set(f, is_int8 ? 127.0f : 7.0f);
  const hn::Rebind<int8_t, F> i8;
  HWY_ALIGN int8_t rounded[kMaxGroupColumns + kLanes];
  for (int64_t i = 0; i < kMaxGroupColumns; i += kLanes) {
    const auto scaled = hn::Mul(hn::Load(f, values + i), hn::Set(f, inverse));
    hn::StoreU(hn::DemoteTo(i8, hn::NearestInt(hn::Min(hn::Max(scaled, low), high))), i8, rounded + i);
  }
  std::memcpy(integers, rounded, weights.size());
  return scale;
}

}  // namespace HWY_NAMESPACE
}  // namespace outrider
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace outrider {

HWY_EXPORT(quantize);

namespace {

bf16 quantize_float8(std::span<const float> weights, int8_t* codes) {
  float magnitude = 0;
  for (float w : weights) magnitude = std::max(magnitude, std::abs(w));
  const bf16 scale = scale_of_group(WeightType::kFloat8, magnitude);
  const float inverse = inverse_of_scale(scale);
  for (size_t i = 0; i < weights.size(); ++i)
    codes[i] = static_cast<int8_t>(code_of_weight(WeightType::kFloat8, weights[i], inverse));
  return scale;
}

}  // namespace

bf16 quantize_group(WeightType type, std::span<const float> weights, int8_t* integers) {
  CHECK(is_quantized(type) && weights.size() <= kMaxGroupColumns, "{} weights of type {}", weights.size(),
        static_cast<int>(type));
  if (type == WeightType::kFloat8) return quantize_float8(weights, integers);
  return HWY_DYNAMIC_DISPATCH(quantize)(type, weights, integers);
}

}  // namespace outrider
#endif
