// Steps of codes of published checkpoints: as those of mma_weights.h, with numbers as a
// CodeForm says. A number is a code less its zero, a whole number below 256 in size or one of fp8 or fp4:
// exact in bf16. Which words a form has is the same for all warps, so that no branch on it parts them.
// Included by kernels only.
#pragma once

#include "kernels/cuda/code_form.h"
#include "kernels/cuda/mma_weights.h"

namespace outrider::cuda {

struct UnitNumbers {
  float scale = 0;
  int32_t zero = 0;  // constant or stored
  float minimum = 0;
};

// Words of one row for one step, as stored.
struct RowWords {
  uint16_t words[CodeForm::kMaxWords] = {};

  __device__ __forceinline__ uint32_t byte(int32_t index, int unit) const {
    return static_cast<uint32_t>(words[index] >> (unit % 2 * 8)) & 255u;
  }
  // A whole number times an fp16 one, exactly.
  __device__ __forceinline__ float nested(int32_t code_word, int32_t half_word, int unit) const {
    return static_cast<float>(static_cast<int8_t>(byte(code_word, unit))) * float_of_half(words[half_word]);
  }
  __device__ __forceinline__ float scale(const CodeForm& f, int unit) const {
    switch (f.scale) {
      case ScaleType::kFloat16:
        return float_of_half(words[unit]);
      case ScaleType::kBFloat16:
        return to_float(bf16{words[unit]});
      case ScaleType::kFloat32:
        return std::bit_cast<float>(static_cast<uint32_t>(words[unit % 2 * 2]) |
                                    static_cast<uint32_t>(words[unit % 2 * 2 + 1]) << 16);
      case ScaleType::kPowerOfTwo: {
        const uint32_t power = byte(0, unit);
        return std::bit_cast<float>(power == 0 ? 0x00400000u : power == 255 ? 0x7fc00000u : power << 23);
      }
      case ScaleType::kNested:
        break;
    }
    return f.zero_type == ZeroType::kMinimum ? nested(0, 2, unit) : nested(unit / 2, 2, unit);
  }
  __device__ __forceinline__ UnitNumbers numbers(const CodeForm& f, int unit) const {
    UnitNumbers n{.scale = scale(f, unit), .zero = f.zero};
    if (f.zero_type == ZeroType::kStored)
      n.zero = static_cast<int32_t>(f.zeros_word() == 1 ? byte(1, unit) : byte(2, unit));
    if (f.zero_type == ZeroType::kMinimum) n.minimum = nested(1, 3, unit);
    return n;
  }
};

// Words of a lane's two rows. `first`: theirs, each kDistance behind the one before it.
struct LaneWords {
  RowWords rows[2];

  __device__ __forceinline__ LaneWords(const CodeForm& f, const uint32_t* first) {
    OUTRIDER_UNROLL
    for (int w = 0; w < CodeForm::kMaxWords; ++w) {
      const uint32_t pair = w < f.words ? first[w] : 0;
      rows[0].words[w] = static_cast<uint16_t>(pair);
      rows[1].words[w] = static_cast<uint16_t>(pair >> 16);
    }
  }
};

constexpr bool is_whole(CodeType type) {
  return type == CodeType::kUnsigned4 || type == CodeType::kUnsigned8;
}

// The number that is added to a row's codes when they become bf16.
template <CodeType kType>
__device__ __forceinline__ uint32_t code_base(int32_t zero) {
  return is_whole(kType) ? minus_whole(zero) : 0;
}

// Two of a word's e2m1, in the low halves of its bytes 0 and 2: exponent and mantissa in those of bf16 are
// 2^-126 times the number, its subnormal too.
__device__ __forceinline__ uint32_t e2m1_pair(uint32_t codes) {
  return fma_pairs((codes & 0x00070007u) << 6 | (codes & 0x00080008u) << 12, 0x7e807e80u, 0);
}

// Operand a of instruction i of a half step: `word` has the codes of both rows where they are of four bits,
// else `word` those of the first row and `second` those of the second.
template <CodeType kType>
__device__ __forceinline__ void widen_codes(uint32_t word, uint32_t second, const uint32_t (&base)[2],
                                            uint32_t (&a)[4]) {
  if constexpr (kType == CodeType::kUnsigned4) {
    widen_half_bytes(word, base, a);
  } else if constexpr (kType == CodeType::kE2m1) {
    a[0] = e2m1_pair(word);
    a[1] = e2m1_pair(word >> 8);
    a[2] = e2m1_pair(word >> 4);
    a[3] = e2m1_pair(word >> 12);
  } else if constexpr (kType == CodeType::kE4m3) {
    widen<WeightType::kFloat8>(word, a[0], a[2]);
    widen<WeightType::kFloat8>(second, a[1], a[3]);
  } else {
    widen_bytes(word ^ 0x80808080u, base[0], a[0], a[2]);  // their upper bits are flipped
    widen_bytes(second ^ 0x80808080u, base[1], a[1], a[3]);
  }
}

// Units of 64 or 32 columns.
template <CodeType kType>
struct PublishedWeights : CodeInputs {
  static constexpr bool kIsHalfBytes = code_bits(kType) == 4;
  static constexpr bool kMayHaveMinimum = kType == CodeType::kUnsigned4;
  static constexpr float kSumUnit = is_whole(kType) ? kWholeUnit : 1;
  static constexpr int kWords = kIsHalfBytes ? 1 : 2;
  static constexpr int kScaleWords = 1;
  static constexpr int kScaleBytes = 8 * 4 * CodeForm::kMaxWords;
  static constexpr bool kSharesWords = true;

  struct Operand {
    uint32_t a[4][4];
    float scales[2][2], minima[2][2];  // by half of the step, and row
  };
  template <int kDistance>
  __device__ __forceinline__ static Operand load(const CodeForm& form, const uint4* words,
                                                 const uint32_t* numbers) {
    const LaneWords lane(form, numbers);
    Operand own;
    UnitNumbers n[2] = {lane.rows[0].numbers(form, 0), lane.rows[1].numbers(form, 0)};
    OUTRIDER_UNROLL
    for (int half = 0; half < 2; ++half) {
      if (half == 1 && form.unit != kGroupStep) {
        n[0] = lane.rows[0].numbers(form, 1);
        n[1] = lane.rows[1].numbers(form, 1);
      }
      OUTRIDER_UNROLL
      for (int row = 0; row < 2; ++row) {
        own.scales[half][row] = n[row].scale;
        own.minima[half][row] = n[row].minimum;
      }
      const uint32_t base[2] = {code_base<kType>(n[0].zero), code_base<kType>(n[1].zero)};
      const uint4 word = words[kIsHalfBytes ? 0 : half * static_cast<int>(kWarp)];
      OUTRIDER_UNROLL
      for (int i = 0; i < 2; ++i) {
        const uint32_t of_halves = half == 0 ? (i == 0 ? word.x : word.y) : (i == 0 ? word.z : word.w);
        widen_codes<kType>(kIsHalfBytes ? of_halves
                           : i == 0     ? word.x
                                        : word.z,
                           i == 0 ? word.y : word.w, base, own.a[half * 2 + i]);
      }
    }
    return own;
  }
  // By half of the step and the lane's tokens: 1 / kWholeUnit of sums of activations, which minima are
  // multiplied with. They are the same for all rows of weights.
  template <int kColumns>
  using InputSums = float[2][kColumns][2];
  __device__ __forceinline__ static bool has_minimum(const CodeForm& form) {
    return kMayHaveMinimum && form.zero_type == ZeroType::kMinimum;
  }
  template <int kColumns>
  __device__ __forceinline__ static void sum_inputs(const uint32_t (&b)[kColumns][kInputs],
                                                    InputSums<kColumns>& inputs) {
    static_assert(kWholeUnit == 64);
    constexpr uint32_t kOnes[4] = {0x3c803c80u, 0x3c803c80u, 0x3c803c80u, 0x3c803c80u};  // 1 / 64
    OUTRIDER_UNROLL
    for (int half = 0; half < 2; ++half) {
      float unit[kColumns][4] = {};
      add_products(half * 2, kOnes, b, unit);
      add_products(half * 2 + 1, kOnes, b, unit);
      OUTRIDER_UNROLL
      for (int c = 0; c < kColumns; ++c) OUTRIDER_UNROLL
      for (int i = 0; i < 2; ++i) inputs[half][c][i] = unit[c][i];
    }
  }
  template <int kColumns>
  __device__ __forceinline__ static void add(const CodeForm& form, const Operand& own,
                                             const uint32_t (&b)[kColumns][kInputs],
                                             const InputSums<kColumns>& inputs, float (&sum)[kColumns][4]) {
    float unit[kColumns][4] = {};
    OUTRIDER_UNROLL
    for (int half = 0; half < 2; ++half) {
      add_products(half * 2, own.a[half * 2], b, unit);
      add_products(half * 2 + 1, own.a[half * 2 + 1], b, unit);
      if (half == 0 && form.unit == kGroupStep) continue;
      add_scaled(own.scales[half][0], own.scales[half][1], unit, sum);
      OUTRIDER_UNROLL
      for (int c = 0; c < kColumns; ++c) OUTRIDER_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (has_minimum(form)) sum[c][i] = fmaf(inputs[half][c][i % 2], -own.minima[half][i / 2], sum[c][i]);
        unit[c][i] = 0;
      }
    }
  }
  template <int kColumns>
  __device__ __forceinline__ static void add(const CodeForm& form, const Operand& own,
                                             const uint32_t (&b)[kColumns][kInputs],
                                             float (&sum)[kColumns][4]) {
    InputSums<kColumns> inputs = {};
    if (has_minimum(form)) sum_inputs<kColumns>(b, inputs);
    add<kColumns>(form, own, b, inputs, sum);
  }
};

// Units of 16 columns, an instruction each: codes lie as quarter_code_offset says.
struct QuarterWeights : CodeInputs {
  static constexpr float kSumUnit = kWholeUnit;
  static constexpr int kNeighbours = 4;
  static constexpr int kWords = 2;
  static constexpr int kScaleWords = 1;
  static constexpr int kScaleBytes = 8 * 4 * CodeForm::kMaxWords;
  static constexpr bool kSharesWords = true;

  __device__ __forceinline__ static void load_inputs(const bf16* x, int columns, bool wide,
                                                     uint32_t (&b)[kInputs]) {
    OUTRIDER_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int own = i * 16 + static_cast<int>(threadIdx.x % 4) * 4;
      if (wide && own + 4 <= columns) {
        const uint2 four = *reinterpret_cast<const uint2*>(x + own);
        b[i * 2] = four.x;
        b[i * 2 + 1] = four.y;
        continue;
      }
      b[i * 2] = load_pair(x + own, own < columns);
      b[i * 2 + 1] = load_pair(x + own + 2, own + 2 < columns);
    }
  }
  __device__ __forceinline__ static void load_staged(const bf16* x, uint32_t (&b)[kInputs]) {
    OUTRIDER_UNROLL
    for (int i = 0; i < 4; ++i) {
      const uint2 four = *reinterpret_cast<const uint2*>(x + i * 16);
      b[i * 2] = four.x;
      b[i * 2 + 1] = four.y;
    }
  }

  struct Operand {
    uint32_t a[4][4];
    float scales[4][2];  // by unit and row
  };
  template <int kDistance>
  __device__ __forceinline__ static Operand load(const CodeForm& form, const uint4* words,
                                                 const uint32_t* numbers) {
    const LaneWords lane(form, numbers);
    Operand own;
    OUTRIDER_UNROLL
    for (int i = 0; i < 4; ++i) {
      const uint4 word = words[i / 2 * static_cast<int>(kWarp)];
      const UnitNumbers n[2] = {lane.rows[0].numbers(form, i), lane.rows[1].numbers(form, i)};
      const uint32_t base[2] = {code_base<CodeType::kUnsigned8>(n[0].zero),
                                code_base<CodeType::kUnsigned8>(n[1].zero)};
      widen_codes<CodeType::kUnsigned8>(i % 2 == 0 ? word.x : word.z, i % 2 == 0 ? word.y : word.w, base,
                                        own.a[i]);
      own.scales[i][0] = n[0].scale;
      own.scales[i][1] = n[1].scale;
    }
    return own;
  }
  template <int kColumns>
  __device__ __forceinline__ static void add(const CodeForm&, const Operand& own,
                                             const uint32_t (&b)[kColumns][kInputs],
                                             float (&sum)[kColumns][4]) {
    OUTRIDER_UNROLL
    for (int i = 0; i < 4; ++i) {
      float unit[kColumns][4] = {};
      add_products(i, own.a[i], b, unit);
      add_scaled(own.scales[i][0], own.scales[i][1], unit, sum);
    }
  }
};

}  // namespace outrider::cuda
