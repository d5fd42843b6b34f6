// How codes of a published checkpoint (quant_scheme.h) lie in device memory. Codes lie as int8 and int4 do
// (cuda_layout.h), whole bytes with the upper bit flipped, so that they are int8. Beside them a row has, for
// every step of 64 columns, up to four words of 16 bits: what its units share. A unit is 64, 32 or 16
// neighbouring columns of one group, counted from the start of a slice.
//   scales of 16 bits    word u: of unit u
//   scales of fp32       words 2u, 2u + 1: low half, high half
//   powers of two        byte u of word 0
//   stored zeros         byte u of the word behind the scales
//   Q4_K                 bytes u of words 0 and 1: codes of scale and minimum; words 2, 3: their fp16 numbers
//   Q6_K                 byte u % 2 of word u / 2: code of the scale; word 2: its fp16 number
#pragma once

#include <cstdint>
#include <optional>

#include "base/quant_scheme.h"
#include "kernels/cuda/cuda_layout.h"

namespace outrider::cuda {

struct CodeForm {
  static constexpr int kMaxWords = 4;

  CodeType code = CodeType::kUnsigned4;
  ScaleType scale = ScaleType::kFloat32;
  ZeroType zero_type = ZeroType::kConstant;
  int32_t zero = 0;           // with ZeroType::kConstant
  int32_t unit = kGroupStep;  // columns
  int32_t words = 0;          // of a row and step

  // Units of a step: 1, 2 or 4. Kernels ask in their innermost loop, where a division takes 27 instructions.
  OUTRIDER_SHARED_CODE int32_t units() const {
    return unit == kGroupStep ? 1 : 2 * unit == kGroupStep ? 2 : 4;
  }
  OUTRIDER_SHARED_CODE bool is_half_bytes() const { return code_bits(code) == 4; }
  // With stored zeros: the word that has them, 1 or 2.
  OUTRIDER_SHARED_CODE int32_t zeros_word() const {
    return scale == ScaleType::kFloat32 ? 2 * units() : units();
  }
  bool operator==(const CodeForm&) const = default;
};

// The form of a matrix of k columns; nothing if the kernels have none. is_scattered: groups meet in runs of
// any length.
std::optional<CodeForm> code_form(const QuantScheme& scheme, int64_t k, bool is_scattered);

}  // namespace outrider::cuda
