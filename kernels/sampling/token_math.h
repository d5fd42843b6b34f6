// The arithmetic of one token's logit on its way to a probability: one definition for the loops of
// row_kernels.cpp (vectors), for CUDA kernels and for tests. Doubles are added and multiplied, never fused,
// so every caller gets the same bits.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "base/philox.h"
#include "base/shared_code.h"

namespace outrider {

// round(exp(l - max) * 2^bits) of logits as doubles, to nearest even. Range reduction to |r| <= ln(2)/2 with
// a two-part ln(2) (fdlibm's constants), Taylor to r^13 (remainder below 2^-57): below 1 ulp before the final
// rounding. F64 and U64 are double and uint64_t, or vectors of these types.
template <class F64, class U64>
OUTRIDER_SHARED_INLINE void exp_weights(const F64& logits, double max, int bits, U64& out) {
  constexpr double kLog2E = 0x1.71547652b82fep+0;
  constexpr double kLn2High = 0x1.62e42feep-1;
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  constexpr double kRoundToInteger = 0x1.8p52;
  constexpr double kFloor = -40;  // exp(-40) * 2^44 is 7e-5: weight 0, like everything below it
  F64 x = logits - max;
  x = x > kFloor ? x : F64{} + kFloor;
  const F64 shifted = x * kLog2E + kRoundToInteger;
  const F64 n = shifted - kRoundToInteger;
  const F64 r = (x - n * kLn2High) - n * kLn2Low;
  F64 p = F64{} + 1.0 / 6227020800;
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 1.0 / 2;
  p = p * r + 1.0;
  p = p * r + 1.0;
  // The low bits of `shifted` hold n; shifted into the exponent field they are a factor of 2^n.
  U64 exponent;
  std::memcpy(&exponent, &shifted, sizeof exponent);
  exponent = (exponent << 52) + (static_cast<uint64_t>(1023 + bits) << 52);
  F64 power;
  std::memcpy(&power, &exponent, sizeof power);
  const F64 rounded = p * power + 0x1p52;  // an integer below 2^52 now stands in the mantissa
  std::memcpy(&out, &rounded, sizeof out);
  out &= (uint64_t{1} << 52) - 1;
}

// W = round(exp(l - max) * 2^44) of one logit; weight_of (row_kernels.h) through vectors is the same number.
constexpr int kWeightBits = 44;
OUTRIDER_SHARED_CODE inline uint64_t fixed_weight(float logit, float max) {
  uint64_t weight;
  exp_weights(static_cast<double>(logit), static_cast<double>(max), kWeightBits, weight);
  return weight;
}

// round(exp(l - max) * 2^31): a draft distribution's weight, small enough to travel as 32 bits.
constexpr int kDraftWeightBits = 31;
OUTRIDER_SHARED_CODE inline uint32_t draft_weight(float logit, float max) {
  uint64_t weight;
  exp_weights(static_cast<double>(logit), static_cast<double>(max), kDraftWeightBits, weight);
  return static_cast<uint32_t>(weight);
}

// W * (max - l), rounded: what a token adds to the moment that a row's entropy is made of. W falls faster
// than max - l rises, so a row's moment is below 2^62.
OUTRIDER_SHARED_CODE inline uint64_t entropy_moment(uint64_t weight, float logit, float max) {
  if (weight == 0) return 0;  // and -inf has no difference
  const double below = static_cast<double>(max) - static_cast<double>(logit);
  return static_cast<uint64_t>(static_cast<int64_t>(weight) * below + 0.5);
}

// Recovery weight round(max(0, ratio * p - q) * 2^60), to nearest even, with p = weight / total.
OUTRIDER_SHARED_INLINE uint64_t residual_weight(uint64_t weight, double total, double ratio, double q) {
  const double p = static_cast<double>(static_cast<int64_t>(weight)) / total;
  const double excess = (ratio * p - q) * 0x1p60;
  const double clipped = excess > 0 ? excess : 0;
  const double rounded = clipped < 0x1p52 ? (clipped + 0x1p52) - 0x1p52 : clipped;
  return static_cast<uint64_t>(static_cast<int64_t>(rounded));
}

// A token's score under the invariant rule.
OUTRIDER_SHARED_CODE inline float gumbel_score(float scaled_logit, uint32_t word) {
  return scaled_logit + static_cast<float>(gumbel_of_word(word));
}

struct PenaltyFactors {
  float repetition = 1, presence = 0, frequency = 0;
};
OUTRIDER_SHARED_CODE inline float penalised(float logit, const PenaltyFactors& factors, bool in_prompt,
                                            int32_t in_output) {
  if (in_prompt || in_output > 0) logit = logit > 0 ? logit / factors.repetition : logit * factors.repetition;
  if (in_output > 0) {
    logit -= factors.frequency * static_cast<float>(in_output);
    logit -= factors.presence;
  }
  return logit;
}

// Mass that top-p asks for: ceil(top_p * total), at least 1 and at most `total`.
OUTRIDER_SHARED_CODE inline uint64_t top_p_mass(float top_p, uint64_t total) {
  const double mass = static_cast<double>(top_p) * static_cast<double>(total);
  if (mass >= 0x1p63) return total;
  auto need = static_cast<uint64_t>(mass);
  need += static_cast<double>(need) < mass;
  return need < 1 ? 1 : need > total ? total : need;
}

}  // namespace outrider
