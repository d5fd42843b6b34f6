// Codes of published checkpoints times inputs quantised to int8. The arithmetic of one output of a leaf, in
// fp32 but for the integers, every + a fused multiply-add (where there is one):
//   sum = 0; for each run of columns that share numbers:
//     a = the sum of code * q over the run, less zero * Q         an exact integer
//     sum += a * (scale * s)          with minima: sum += -minimum * (s * Q)
// q are the integers of the inputs, s their scale and Q their sum (matmul_inputs.h). Integer sums are exact
// in any order, so every instruction set that has fused multiply-add gives the same bits.
//
// Where bytes are multiplied in pairs (maddubs), a pair's sum has 16 bits: 2 * 15 * 127 for a half of a byte,
// and the eight pairs of a run of 32 columns stay below 2^15. A code of 8 bits counts as two halves.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul_codes_int8.cpp"
#include <hwy/foreach_target.h>  // first: it re-includes this file for every instruction set

#include <hwy/highway.h>

#include <utility>

#include "kernels/cpu/byte_quads-inl.h"
#include "kernels/cpu/code_groups-inl.h"
#include "kernels/cpu/matmul_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace outrider {
namespace HWY_NAMESPACE {

constexpr int64_t kCodeLineBytes = 64;
constexpr int64_t kCodePrefetchBytes = 1024;
static_assert(kActivationGroup / 4 * 2 * 15 * 127 < 1 << 15, "the pairs of a run overflow");

// Sums of four neighbouring columns in each 32-bit lane: the bytes of halves of codes, in [0, 15], times the
// int8 inputs of a word.
#if HWY_TARGET == HWY_AVX2
using Pairs = hn::Vec<hn::Repartition<int16_t, F>>;
HWY_INLINE Pairs multiply_pairs(hn::Vec<U> halves, hn::Vec<U> x) {
  return Pairs{_mm256_maddubs_epi16(halves.raw, x.raw)};
}
#elif HWY_TARGET == HWY_AVX3
using Pairs = hn::Vec<hn::Repartition<int16_t, F>>;
HWY_INLINE Pairs multiply_pairs(hn::Vec<U> halves, hn::Vec<U> x) {
  return Pairs{_mm512_maddubs_epi16(halves.raw, x.raw)};
}
#endif

// One run of one vector of outputs, for kRows inputs side by side: exact sums.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
template <int kBits, int kRows, int kVecs>
HWY_INLINE void add_run_codes(const std::byte* line, int64_t columns, const uint32_t* x,
                              hn::Vec<I> (&sum)[kVecs][kRows]) {
  constexpr int64_t kLineColumns = 32 / kBits, kQuads = kLineColumns / 4;
  constexpr int kSides = kBits == 4 ? 1 : 2;  // halves of a code, summed apart
  const U u;
  const hn::Repartition<int16_t, F> i16;
  const auto mask = hn::Set(u, 0x0f0f0f0fu);
  Pairs pairs[kSides][kVecs][kRows];
  for (auto& side : pairs)
    for (auto& vector : side)
      for (Pairs& p : vector) p = hn::Zero(i16);
  for (int64_t k = 0; k < columns; k += kLineColumns, line += kCodeLineBytes, x += kQuads * kRows) {
    __builtin_prefetch(line + kCodePrefetchBytes);
    hn::Vec<U> low[kVecs], high[kVecs];
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) {
      const auto w = hn::LoadU(u, reinterpret_cast<const uint32_t*>(line) + v * kLanes);
      low[v] = hn::And(w, mask);
      high[v] = hn::And(hn::ShiftRight<4>(w), mask);
    }
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      const auto first = hn::Set(u, x[m]);
      // The high half of a byte is another column's code (4 bits), or the same one's upper bits.
      const auto second = kBits == 4 ? hn::Set(u, x[kRows + m]) : first;
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) {
        pairs[0][v][m] = hn::Add(pairs[0][v][m], multiply_pairs(low[v], first));
        pairs[kSides - 1][v][m] = hn::Add(pairs[kSides - 1][v][m], multiply_pairs(high[v], second));
      }
    }
  }
  const auto ones = hn::Set(U(), 0x00010001u), sixteens = hn::Set(U(), 0x00100010u);
#pragma GCC unroll 2
  for (int v = 0; v < kVecs; ++v)
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      sum[v][m] = dot_pairs(hn::BitCast(u, pairs[0][v][m]), ones, hn::Zero(I()));
      if constexpr (kSides == 2) sum[v][m] = dot_pairs(hn::BitCast(u, pairs[1][v][m]), sixteens, sum[v][m]);
    }
}
#else
// The words of four int8 as columns 0 and 2, and 1 and 3, of 16 bits each.
HWY_INLINE uint32_t even_shorts(uint32_t word) {
  return static_cast<uint16_t>(static_cast<int8_t>(word)) |
         static_cast<uint32_t>(static_cast<uint16_t>(static_cast<int8_t>(word >> 16))) << 16;
}
template <int kBits, int kRows, int kVecs>
HWY_INLINE void add_run_codes(const std::byte* line, int64_t columns, const uint32_t* x,
                              hn::Vec<I> (&sum)[kVecs][kRows]) {
  constexpr int64_t kLineColumns = 32 / kBits;
  const U u;
  for (int v = 0; v < kVecs; ++v)
    for (int m = 0; m < kRows; ++m) sum[v][m] = hn::Zero(I());
  const auto add = [&](hn::Vec<U> quad, int v) HWY_ATTR {
    uint32_t shorts[2 * kRows];
    for (int m = 0; m < kRows; ++m) {
      shorts[m] = even_shorts(x[m]);
      shorts[kRows + m] = even_shorts(x[m] >> 8);
    }
    add_quad<kRows>(quad, shorts, sum[v]);
  };
  for (int64_t k = 0; k < columns; k += kLineColumns, line += kCodeLineBytes) {
    const auto* words = reinterpret_cast<const uint32_t*>(line);
    const auto low_halves = hn::Set(u, 0x0f0f0f0fu);
    for (int v = 0; v < kVecs; ++v) {
      const auto w = hn::LoadU(u, words + v * kLanes);
      add(kBits == 4 ? hn::And(w, low_halves) : w, v);
    }
    x += kRows;
    if constexpr (kBits == 4) {
      for (int v = 0; v < kVecs; ++v)
        add(hn::And(hn::ShiftRight<4>(hn::LoadU(u, words + v * kLanes)), low_halves), v);
      x += kRows;
    }
  }
}
#endif

// kVecs vectors of outputs of a tile from `lane` on.
template <int kBits, int kRows, int kVecs>
HWY_INLINE void leaf_lanes_int8(const LeafJob& job, int64_t lane) {
  constexpr int64_t kLineColumns = 32 / kBits;
  const CodeLayout& c = *job.codes;
  const bool is_stored = c.scheme.zero_type == ZeroType::kStored,
             has_minima = c.scheme.zero_type == ZeroType::kMinimum;
  const auto constant = hn::Set(I(), has_minima || is_stored ? 0 : c.scheme.zero);
  V sum[kVecs][kRows];
  for (auto& vector : sum)
    for (V& v : vector) v = hn::Zero(F());
  const std::byte* line = job.tile + lane * static_cast<int64_t>(sizeof(uint32_t));
  const uint32_t* x = job.inputs;
  for (int64_t r = 0; r < job.run_count; ++r) {
    const CodeLayout::Run& run = job.runs[r];
    hn::Vec<I> acc[kVecs][kRows];
    add_run_codes<kBits, kRows, kVecs>(line, run.columns, x, acc);
    line += run.columns / kLineColumns * kCodeLineBytes;
    x += run.columns / 4 * kRows;
    const float* scales = job.input_scales + r * kRows;
    const int32_t* integers = job.input_offsets + r * kRows;
    const float* sums = job.input_sums + r * kRows;
    for (int v = 0; v < kVecs; ++v) {
      const int64_t at = lane + v * kLanes;
      const V scale = load_scales(c, job.scales, run, at);
      const hn::Rebind<uint8_t, F> u8;
      auto zero = constant;
      if (is_stored)
        zero = hn::PromoteTo(I(), hn::LoadU(u8, reinterpret_cast<const uint8_t*>(job.scales + c.zeros) +
                                                    run.group * kTileColumns + at));
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m) {
        auto a = acc[v][m];
        if (!has_minima) a = hn::Sub(a, hn::Mul(zero, hn::Set(I(), integers[m])));
        sum[v][m] = hn::MulAdd(hn::ConvertTo(F(), a), hn::Mul(scale, hn::Set(F(), scales[m])), sum[v][m]);
      }
      if (has_minima) {
        const V minimum = load_minima(c, job.scales, run, at);
#pragma GCC unroll 16
        for (int m = 0; m < kRows; ++m) sum[v][m] = hn::NegMulAdd(minimum, hn::Set(F(), sums[m]), sum[v][m]);
      }
    }
  }
  for (int v = 0; v < kVecs; ++v)
    for (int m = 0; m < kRows; ++m)
      hn::Store(sum[v][m], F(), job.sums + m * kTileColumns + lane + v * kLanes);
}

// As many rows as registers hold sums of, for as many vectors as share what is read.
constexpr int kMaxInt8Rows = kLanes >= 16 ? 8 : kLanes >= 8 ? 4 : 1;
template <int kBits>
constexpr int kTogether = kBits == 4 && kVectors > 1 ? 2 : 1;

template <int kBits, int kRows>
void leaf_int8(const LeafJob& job) {
  constexpr int kVecs = kTogether<kBits>;
  for (int64_t i = 0; i < kVectors; i += kVecs) leaf_lanes_int8<kBits, kRows, kVecs>(job, i * kLanes);
}

constexpr int one_tile(int) { return 1; }

template <int kBits, int... kRow>
KernelSet make_int8_set(std::integer_sequence<int, kRow...>) {
  return {.layout = InputLayout::kBytes,
          .max_rows = kMaxInt8Rows,
          .streams = {0, one_tile(kRow)...},
          .many = {nullptr, leaf_int8<kBits, kRow + 1>...},
          .single = {nullptr, leaf_int8<kBits, kRow + 1>...}};
}

const KernelSet& int8_kernels_of_codes(const QuantScheme& scheme) {
  constexpr auto kRows = std::make_integer_sequence<int, kMaxInt8Rows>();
  static const KernelSet four = make_int8_set<4>(kRows), eight = make_int8_set<8>(kRows);
  return code_bits(scheme.code) == 4 ? four : eight;
}

}  // namespace HWY_NAMESPACE
}  // namespace outrider
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace outrider {

HWY_EXPORT(int8_kernels_of_codes);

const KernelSet& highway_int8_code_kernels(const QuantScheme& scheme) {
  return HWY_DYNAMIC_DISPATCH(int8_kernels_of_codes)(scheme);
}

}  // namespace outrider
#endif
