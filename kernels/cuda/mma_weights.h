// How the kernels of products hold one step of weights and of activations, for each format of weights: what a
// lane copies, which of a token's activations it wants, what becomes of the weights of a row tile (Operand),
// and how they are multiplied with any number of tokens. Included by kernels only.
#pragma once

#include "base/cuda_device.h"
#include "kernels/cpu/packed_matrix.h"
#include "kernels/cuda/code_form.h"
#include "kernels/cuda/cuda_layout.h"

namespace outrider::cuda {

// Two neighbouring activations, or zeros outside.
__device__ __forceinline__ uint32_t load_pair(const bf16* x, bool inside) {
  return inside ? *reinterpret_cast<const uint32_t*>(x) : 0u;
}

// bf16: a step is one instruction.
struct PairWeights {
  static constexpr int kStepColumns = kStep;
  static constexpr int kWords = 1;       // of 16 bytes that a lane copies of a row tile
  static constexpr int kScaleWords = 0;  // of 4 bytes, of a pair of rows' scales
  static constexpr int kScaleBytes = 0;  // of a row tile's scales, at most
  // Whether scales are the words of a CodeForm: one to four for a pair of rows, as the form says.
  static constexpr bool kSharesWords = false;
  static constexpr int kInputs = 2;       // words that a lane has of a token's activations,
  static constexpr int kNeighbours = 4;   // in runs of this length
  static constexpr int kRowPadding = 16;  // elements, so that a warp's reads of staged tokens hit all banks
  // Whether weights become bf16 by instructions, so that few warps should do it to the same ones.
  static constexpr bool kIsWidened = false;
  static constexpr bool kMayHaveMinimum = false;  // as PublishedWeights
  // Sums are to be multiplied with it. A power of two, so that it rounds nothing.
  static constexpr float kSumUnit = 1;

  struct Operand {
    uint32_t a[4];
  };
  // load(): `words` is the lane's first word of a row tile, `scales` the first of the scales of its rows, and
  // kDistance words behind it is the next one.

  // x: the token's activations of this step, of which `columns` exist. wide: aligned to 16 bytes.
  __device__ __forceinline__ static void load_inputs(const bf16* x, int columns, bool wide,
                                                     uint32_t (&b)[kInputs]) {
    const int own = static_cast<int>(threadIdx.x % 4) * 4;
    if (wide && own + 4 <= columns) {
      const uint2 four = *reinterpret_cast<const uint2*>(x + own);
      b[0] = four.x;
      b[1] = four.y;
      return;
    }
    b[0] = load_pair(x + own, own < columns);
    b[1] = load_pair(x + own + 2, own + 2 < columns);
  }
  // x: the token's activations of this step in shared memory, at this lane's first column.
  __device__ __forceinline__ static void load_staged(const bf16* x, uint32_t (&b)[kInputs]) {
    const uint2 four = *reinterpret_cast<const uint2*>(x);
    b[0] = four.x;
    b[1] = four.y;
  }

  template <int kDistance>
  __device__ __forceinline__ static Operand load(const CodeForm&, const uint4* words, const uint32_t*) {
    const uint4 word = *words;
    return {{word.x, word.y, word.z, word.w}};
  }
  template <int kColumns>
  __device__ __forceinline__ static void add(const CodeForm&, const Operand& own,
                                             const uint32_t (&b)[kColumns][kInputs],
                                             float (&sum)[kColumns][4]) {
    OUTRIDER_UNROLL
    for (int c = 0; c < kColumns; ++c) mma_16x8x16(sum[c], own.a, b[c]);
  }
};

// fp16 as the sum of two bf16, exactly: a step is two instructions.
struct HalfWeights : PairWeights {
  static constexpr bool kIsWidened = true;

  struct Operand {
    uint32_t upper[4], rest[4];
  };
  template <int kDistance>
  __device__ __forceinline__ static Operand load(const CodeForm&, const uint4* words, const uint32_t*) {
    const uint4 word = *words;
    const uint32_t halves[4] = {word.x, word.y, word.z, word.w};
    Operand own;
    OUTRIDER_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float low = float_of_half(static_cast<uint16_t>(halves[i]));
      const float high = float_of_half(static_cast<uint16_t>(halves[i] >> 16));
      const uint32_t low_bits = std::bit_cast<uint32_t>(low) & 0xffff0000u,
                     high_bits = std::bit_cast<uint32_t>(high) & 0xffff0000u;
      own.upper[i] = low_bits >> 16 | high_bits;
      own.rest[i] = std::bit_cast<uint32_t>(low - std::bit_cast<float>(low_bits)) >> 16 |
                    (std::bit_cast<uint32_t>(high - std::bit_cast<float>(high_bits)) & 0xffff0000u);
    }
    return own;
  }
  template <int kColumns>
  __device__ __forceinline__ static void add(const CodeForm&, const Operand& own,
                                             const uint32_t (&b)[kColumns][kInputs],
                                             float (&sum)[kColumns][4]) {
    OUTRIDER_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      mma_16x8x16(sum[c], own.upper, b[c]);
      mma_16x8x16(sum[c], own.rest, b[c]);
    }
  }
};

// Whole numbers from 0 to 255 in the low bytes of half words are, read as bf16, 2^-133 times as large: the
// subnormal ones and the first that are not lie evenly. So one instruction makes bf16 of codes and subtracts
// their zero. 2^127 is the largest factor, so the results are 1 / kWholeUnit of the numbers. All exact.
constexpr float kWholeUnit = 64;
constexpr uint32_t kOfBytes = 0x7f007f00u;       // 2^127
constexpr uint32_t kOfHighHalves = 0x7d007d00u;  // 2^123: of codes of four bits in the high halves of bytes

// Minus a zero, in the unit of whole codes.
__device__ __forceinline__ uint32_t minus_whole(int32_t zero) {
  return fma_pairs(static_cast<uint32_t>(zero) * 0x00010001u, 0xff00ff00u, 0);
}

// The codes of eight bits without a sign of a word, less a zero, as bf16: bytes 0 and 2, then 1 and 3.
__device__ __forceinline__ void widen_bytes(uint32_t codes, uint32_t minus_zero, uint32_t& even,
                                            uint32_t& odd) {
  even = fma_pairs(codes & 0x00ff00ffu, kOfBytes, minus_zero);
  odd = fma_pairs(odd_bytes(codes), kOfBytes, minus_zero);
}

// The four codes of eight bits of a word, int8 as 1 / kWholeUnit of the numbers.
template <WeightType kType>
__device__ __forceinline__ void widen(uint32_t codes, uint32_t& even, uint32_t& odd) {
  if constexpr (kType == WeightType::kInt8) {
    widen_bytes(codes ^ 0x80808080u, 0xc000c000u, even, odd);  // -128 / 64
  } else {
    // Exponent and mantissa of e4m3 in those of bf16 are 2^-120 times the number, subnormals too.
    const auto number = [](uint32_t bytes) {  // in the high half of each half word
      return fma_pairs((bytes & 0x80008000u) | (bytes >> 4 & 0x07f007f0u), 0x7b807b80u, 0);
    };
    even = number(codes << 8);
    odd = number(codes);
  }
}

// The codes of four bits of a word, less a zero for each of its rows: operand a of an instruction.
__device__ __forceinline__ void widen_half_bytes(uint32_t codes, const uint32_t (&minus_zero)[2],
                                                 uint32_t (&a)[4]) {
  const uint32_t second = codes >> 8;
  a[0] = fma_pairs(codes & 0x000f000fu, kOfBytes, minus_zero[0]);
  a[1] = fma_pairs(second & 0x000f000fu, kOfBytes, minus_zero[1]);
  a[2] = fma_pairs(codes & 0x00f000f0u, kOfHighHalves, minus_zero[0]);
  a[3] = fma_pairs(second & 0x00f000f0u, kOfHighHalves, minus_zero[1]);
}

// Codes: a step is four instructions over 64 columns, of which a lane has two runs of eight neighbours.
struct CodeInputs {
  static constexpr int kStepColumns = kGroupStep;
  static constexpr int kInputs = 8;
  static constexpr int kNeighbours = 8;
  static constexpr int kRowPadding = 32;
  static constexpr bool kSharesWords = false;
  static constexpr bool kIsWidened = true;
  static constexpr bool kMayHaveMinimum = false;
  static constexpr float kSumUnit = 1;

  // wide: activations are aligned to 16 bytes.
  __device__ __forceinline__ static void load_inputs(const bf16* x, int columns, bool wide,
                                                     uint32_t (&b)[kInputs]) {
    OUTRIDER_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int own = half * 32 + static_cast<int>(threadIdx.x % 4) * 8;
      if (wide && own + 8 <= columns) {
        const uint4 eight = *reinterpret_cast<const uint4*>(x + own);
        b[half * 4] = eight.x;
        b[half * 4 + 1] = eight.y;
        b[half * 4 + 2] = eight.z;
        b[half * 4 + 3] = eight.w;
        continue;
      }
      OUTRIDER_UNROLL
      for (int i = 0; i < 4; ++i) b[half * 4 + i] = load_pair(x + own + i * 2, own + i * 2 < columns);
    }
  }
  __device__ __forceinline__ static void load_staged(const bf16* x, uint32_t (&b)[kInputs]) {
    OUTRIDER_UNROLL
    for (int half = 0; half < 2; ++half) {
      const uint4 eight = *reinterpret_cast<const uint4*>(x + half * 32);
      b[half * 4] = eight.x;
      b[half * 4 + 1] = eight.y;
      b[half * 4 + 2] = eight.z;
      b[half * 4 + 3] = eight.w;
    }
  }

  // Instruction i of the step with its inputs.
  template <int kColumns>
  __device__ __forceinline__ static void add_products(int i, const uint32_t (&a)[4],
                                                      const uint32_t (&b)[kColumns][kInputs],
                                                      float (&group)[kColumns][4]) {
    OUTRIDER_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      const uint32_t pair[2] = {b[c][i * 2], b[c][i * 2 + 1]};
      mma_16x8x16(group[c], a, pair);
    }
  }

  // scales: bf16, of the lane's first row in the low half, of its second in the high half.
  template <int kColumns>
  __device__ __forceinline__ static void add_scaled(uint32_t scales, const float (&group)[kColumns][4],
                                                    float (&sum)[kColumns][4]) {
    add_scaled(to_float(bf16{static_cast<uint16_t>(scales)}),
               to_float(bf16{static_cast<uint16_t>(scales >> 16)}), group, sum);
  }
  template <int kColumns>
  __device__ __forceinline__ static void add_scaled(float first, float second,
                                                    const float (&group)[kColumns][4],
                                                    float (&sum)[kColumns][4]) {
    OUTRIDER_UNROLL
    for (int c = 0; c < kColumns; ++c) OUTRIDER_UNROLL
    for (int i = 0; i < 4; ++i) sum[c][i] = fmaf(group[c][i], i < 2 ? first : second, sum[c][i]);
  }
};

// Codes of eight bits: a step is one group, summed apart and then scaled.
template <WeightType kType>
struct CodeWeights : CodeInputs {
  static constexpr int kWords = 2;
  static constexpr int kScaleWords = 1;
  static constexpr int kScaleBytes = 8 * 4;
  static constexpr float kSumUnit = kType == WeightType::kInt8 ? kWholeUnit : 1;

  struct Operand {
    uint32_t a[4][4];
    uint32_t scales;
  };
  template <int kDistance>
  __device__ __forceinline__ static Operand load(const CodeForm&, const uint4* words,
                                                 const uint32_t* scales) {
    Operand own{.a = {}, .scales = *scales};
    OUTRIDER_UNROLL
    for (int half = 0; half < 2; ++half) {
      const uint4 word = words[half * static_cast<int>(kWarp)];
      const uint32_t codes[2][2] = {{word.x, word.y}, {word.z, word.w}};
      OUTRIDER_UNROLL
      for (int i = 0; i < 2; ++i) {
        uint32_t(&a)[4] = own.a[half * 2 + i];
        widen<kType>(codes[i][0], a[0], a[2]);
        widen<kType>(codes[i][1], a[1], a[3]);
      }
    }
    return own;
  }
  template <int kColumns>
  __device__ __forceinline__ static void add(const CodeForm&, const Operand& own,
                                             const uint32_t (&b)[kColumns][kInputs],
                                             float (&sum)[kColumns][4]) {
    float group[kColumns][4] = {};
    OUTRIDER_UNROLL
    for (int i = 0; i < 4; ++i) add_products(i, own.a[i], b, group);
    add_scaled(own.scales, group, sum);
  }
};

// Codes of four bits: a step is two groups.
struct HalfByteWeights : CodeInputs {
  static constexpr int kWords = 1;
  static constexpr int kScaleWords = 2;
  static constexpr int kScaleBytes = 8 * 8;
  static constexpr float kSumUnit = kWholeUnit;

  struct Operand {
    uint32_t a[4][4];
    uint32_t scales[2];
  };
  template <int kDistance>
  __device__ __forceinline__ static Operand load(const CodeForm&, const uint4* words,
                                                 const uint32_t* scales) {
    const uint4 word = *words;
    const uint32_t codes[4] = {word.x, word.y, word.z, word.w};
    Operand own{.a = {}, .scales = {scales[0], scales[kDistance]}};
    OUTRIDER_UNROLL
    for (int i = 0; i < 4; ++i) widen_half_bytes(codes[i], {0xbe00be00u, 0xbe00be00u}, own.a[i]);  // -8 / 64
    return own;
  }
  template <int kColumns>
  __device__ __forceinline__ static void add(const CodeForm&, const Operand& own,
                                             const uint32_t (&b)[kColumns][kInputs],
                                             float (&sum)[kColumns][4]) {
    OUTRIDER_UNROLL
    for (int half = 0; half < 2; ++half) {
      float group[kColumns][4] = {};
      OUTRIDER_UNROLL
      for (int i = half * 2; i < half * 2 + 2; ++i) add_products(i, own.a[i], b, group);
      add_scaled(own.scales[half], group, sum);
    }
  }
};

}  // namespace outrider::cuda
