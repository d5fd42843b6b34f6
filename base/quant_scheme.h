// How a published checkpoint holds a matrix as codes: data, understood by whatever reads, packs or multiplies
// it. A group of columns of a row shares numbers (GroupNumbers), and a weight is, in fp32,
//   (number(code) - zero) * scale             with a constant or a stored zero
//   number(code) * scale - minimum            with a minimum (Q4_1, Q5_1 and K types of GGUF)
// Every product but the first form's with an fp32 scale is exact, so that fused and plain arithmetic agree.
#pragma once

#include <bit>
#include <cstdint>

#include "base/float8.h"

namespace outrider {

enum class CodeType : uint8_t {
  kUnsigned4,
  kUnsigned8,
  kE4m3,  // base/float8.h
  kE2m1   // a sign, two bits of exponent, one of mantissa (OCP Microscaling 1.0, 5.3.3)
};

enum class ZeroType : uint8_t {
  kConstant,  // QuantScheme::zero for the whole matrix: what stands for 0
  kStored,    // a whole number in [0, 255] for each row and group
  kMinimum,   // nested where the scale is, else an fp16 number for each row and group, with a scale in fp16
};

enum class ScaleType : uint8_t {
  kFloat32,
  kBFloat16,
  kFloat16,
  kPowerOfTwo,  // e8m0: 2^(byte - 127), NaN for 255 (OCP Microscaling 1.0, 5.4.1)
  kNested,  // a whole number in [-128, 127] for each group, times one fp16 number for groups_together groups
};

struct QuantScheme {
  CodeType code = CodeType::kUnsigned4;
  ZeroType zero_type = ZeroType::kConstant;
  ScaleType scale = ScaleType::kFloat32;
  int32_t zero = 0;             // with ZeroType::kConstant
  int64_t group = 0;            // neighbouring columns that share numbers, where no order says otherwise
  int64_t groups_together = 1;  // with ScaleType::kNested
  bool operator==(const QuantScheme&) const = default;
};

// The form of the inputs that a product of codes reads.
enum class ActivationFormat : uint8_t {
  kBFloat16,  // rounded to bf16
  kInt8,      // quantised to int8, one scale for each row and group of at most kActivationGroup columns
};
constexpr int64_t kActivationGroup = 32;

// Whether products with int8 inputs exist: codes are whole numbers.
constexpr bool takes_int8_inputs(CodeType type) {
  return type == CodeType::kUnsigned4 || type == CodeType::kUnsigned8;
}

constexpr int64_t code_bits(CodeType type) {
  return type == CodeType::kUnsigned4 || type == CodeType::kE2m1 ? 4 : 8;
}

constexpr float e2m1_to_float(uint8_t code) {
  constexpr float kMagnitudes[]{0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  const float magnitude = kMagnitudes[code & 7];
  return code & 8 ? -magnitude : magnitude;
}

constexpr float power_of_code(uint8_t code) {
  if (code == 0) return 0x1p-127f;
  return std::bit_cast<float>(code == 255 ? 0x7fc00000u : uint32_t{code} << 23);
}
// Its inverse.
constexpr uint8_t code_of_power(float power) {
  return static_cast<uint8_t>(std::bit_cast<uint32_t>(power) >> 23 & 255);
}

// Scale and zero or minimum that the columns of one group of one row share. Nested scales and minima are fp16
// numbers, exactly.
struct GroupNumbers {
  float scale = 0;         // nested: of all groups together, times scale_code
  int32_t scale_code = 1;  // nested only
  int32_t zero = 0;        // constant or stored
  float minimum = 0;       // of all groups together if nested, times minimum_code, which is 1 otherwise
  int32_t minimum_code = 0;
};

// The binary16 of a number that is one, exactly; bits that do not fit are cut off.
constexpr uint16_t half_of(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7fffffff;
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  if (magnitude >= 0x47800000)
    return static_cast<uint16_t>(sign | (magnitude > 0x7f800000 ? 0x7e00 : 0x7c00));
  if (magnitude < 0x38800000)  // subnormal or zero: whole multiples of 2^-24
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p24f));
  return static_cast<uint16_t>(sign | ((magnitude >> 13) - (112u << 10)));
}

inline float weight_of_code(const QuantScheme& scheme, uint8_t code, const GroupNumbers& g) {
  const float scale = g.scale * static_cast<float>(g.scale_code);
  const float number = scheme.code == CodeType::kE4m3   ? e4m3_to_float(code)
                       : scheme.code == CodeType::kE2m1 ? e2m1_to_float(code)
                                                        : static_cast<float>(code);
  if (scheme.zero_type == ZeroType::kMinimum)
    return number * scale - g.minimum * static_cast<float>(g.minimum_code);
  return (number - static_cast<float>(g.zero)) * scale;
}

}  // namespace outrider
