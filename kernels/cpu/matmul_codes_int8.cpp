// Codes of published checkpoints times inputs quantised to int8. The arithmetic of one output of a leaf, in
// fp32 but for the integers, every + a fused multiply-add (where there is one):
//   sum = 0; for each run of columns that share numbers:
//     a = the sum of code * q over the run, less zero * Q         an exact integer
//     sum += a * (scale * s)          with minima: sum += -minimum * (s * Q)
// q are the integers of the inputs, s their scale and Q their sum (matmul_inputs.h). Integer sums are exact
// in any order, so every instruction set that has fused multiply-add gives the same bits.
//
// Where bytes are multiplied in pairs (maddubs), a pair's sum has 16 bits: 2 * 15 * 127 for a half of a byte,
// and the eight pairs of a run of 32 columns stay below 2^15. A code of 8 bits counts as two halves. Two
// pairs of codes of 6 bits and four of 5 bits stay below 2^15, too.
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
static_assert(2 * 2 * 63 * 127 < 1 << 15 && 4 * 2 * 31 * 127 < 1 << 15, "the pairs of planes overflow");

// Columns of a line, or of the lines of 5 or 6 bits that belong together (packed_matrix.h).
template <int kBits>
constexpr int64_t kColumnsTogether = kBits == 5   ? 32
                                     : kBits == 6 ? 16
                                                  : 32 / kBits;
template <int kBits>
constexpr int64_t kBytesTogether = kColumnsTogether<kBits>* kTileColumns* kBits / 8;
template <int kBits>
constexpr bool kHasPlanes = kBits == 5 || kBits == 6;

// The upper bits of quad kQuad, of a line that has those of every quad, where a code has them.
template <int kBits, int kQuad>
HWY_INLINE hn::Vec<U> upper_bits(hn::Vec<U> line) {
  constexpr int kShift = 4 - kQuad * (kBits - 4);
  const auto mask = hn::Set(U(), kBits == 5 ? 0x10101010u : 0x30303030u);
  if constexpr (kShift >= 0)
    return hn::And(hn::ShiftLeft<kShift>(line), mask);
  else
    return hn::And(hn::ShiftRight<-kShift>(line), mask);
}

// Two quads of codes of 5 or 6 bits: of a line of their lower 4 bits, and of the line of upper bits.
template <int kBits, int kQuad>
HWY_INLINE void unpack_planes(const std::byte* line, hn::Vec<U> upper, hn::Vec<U>& first,
                              hn::Vec<U>& second) {
  const U u;
  const auto w = hn::LoadU(u, reinterpret_cast<const uint32_t*>(line)), mask = hn::Set(u, 0x0f0f0f0fu);
  first = hn::Or(hn::And(w, mask), upper_bits<kBits, kQuad>(upper));
  second = hn::Or(hn::And(hn::ShiftRight<4>(w), mask), upper_bits<kBits, kQuad + 1>(upper));
}

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
// 16 columns of codes of 5 or 6 bits, from quad kQuad of the lines on.
template <int kBits, int kQuad, int kRows, int kVecs>
HWY_INLINE void add_plane_columns(const std::byte* lines, const uint32_t* x,
                                  hn::Vec<I> (&sum)[kVecs][kRows]) {
  const U u;
  const auto ones = hn::Set(u, 0x00010001u);
  const std::byte* line = lines + kQuad / 2 * kCodeLineBytes;
#pragma GCC unroll 2
  for (int v = 0; v < kVecs; ++v) {
    constexpr int64_t kVectorBytes = kLanes * sizeof(uint32_t);
    const auto upper = hn::LoadU(u, reinterpret_cast<const uint32_t*>(lines + kBytesTogether<kBits> -
                                                                      kCodeLineBytes + v * kVectorBytes));
    hn::Vec<U> quad[4];
    unpack_planes<kBits, kQuad>(line + v * kVectorBytes, upper, quad[0], quad[1]);
    unpack_planes<kBits, kQuad + 2>(line + kCodeLineBytes + v * kVectorBytes, upper, quad[2], quad[3]);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      auto low = hn::Add(multiply_pairs(quad[0], hn::Set(u, x[m])),
                         multiply_pairs(quad[1], hn::Set(u, x[kRows + m])));
      const auto high = hn::Add(multiply_pairs(quad[2], hn::Set(u, x[2 * kRows + m])),
                                multiply_pairs(quad[3], hn::Set(u, x[3 * kRows + m])));
      if constexpr (kBits == 5)
        low = hn::Add(low, high);
      else
        sum[v][m] = dot_pairs(hn::BitCast(u, high), ones, sum[v][m]);
      sum[v][m] = dot_pairs(hn::BitCast(u, low), ones, sum[v][m]);
    }
  }
}

template <int kBits, int kRows, int kVecs>
HWY_INLINE void add_run_planes(const std::byte* lines, int64_t columns, const uint32_t* x,
                               hn::Vec<I> (&sum)[kVecs][kRows]) {
  for (auto& vector : sum)
    for (auto& s : vector) s = hn::Zero(I());
  for (int64_t k = 0; k < columns; k += kColumnsTogether<kBits>, lines += kBytesTogether<kBits>) {
#pragma GCC unroll 5
    for (int64_t at = 0; at < kBytesTogether<kBits>; at += kCodeLineBytes)
      __builtin_prefetch(lines + at + kCodePrefetchBytes);
    add_plane_columns<kBits, 0, kRows, kVecs>(lines, x, sum);
    x += 4 * kRows;
    if constexpr (kBits == 5) {
      add_plane_columns<kBits, 4, kRows, kVecs>(lines, x, sum);
      x += 4 * kRows;
    }
  }
}

template <int kBits, int kRows, int kVecs>
HWY_INLINE void add_run_codes(const std::byte* line, int64_t columns, const uint32_t* x,
                              hn::Vec<I> (&sum)[kVecs][kRows]) {
  if constexpr (kHasPlanes<kBits>) return add_run_planes<kBits>(line, columns, x, sum);
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
  if constexpr (kHasPlanes<kBits>) {
    constexpr int64_t kLower = kBytesTogether<kBits> - kCodeLineBytes;
    const auto add_two = [&]<int kQuad>(std::integral_constant<int, kQuad>) HWY_ATTR {
      for (int v = 0; v < kVecs; ++v) {
        const std::byte* at = line + v * kLanes * static_cast<int64_t>(sizeof(uint32_t));
        const auto upper = hn::LoadU(u, reinterpret_cast<const uint32_t*>(at + kLower));
        hn::Vec<U> first, second;
        unpack_planes<kBits, kQuad>(at + kQuad / 2 * kCodeLineBytes, upper, first, second);
        add(first, v);
        x += kRows;
        add(second, v);
        x -= kRows;
      }
      x += 2 * kRows;
    };
    for (int64_t k = 0; k < columns; k += kColumnsTogether<kBits>, line += kBytesTogether<kBits>) {
      add_two(std::integral_constant<int, 0>());
      add_two(std::integral_constant<int, 2>());
      if constexpr (kBits == 5) {
        add_two(std::integral_constant<int, 4>());
        add_two(std::integral_constant<int, 6>());
      }
    }
    return;
  }
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
  const CodeLayout& c = *job.codes;
  const bool is_stored = c.scheme.zero_type == ZeroType::kStored,
             has_minima = c.scheme.zero_type == ZeroType::kMinimum;
  V sum[kVecs][kRows];
  for (auto& vector : sum)
    for (V& v : vector) v = hn::Zero(F());
  const std::byte* line = job.tile + lane * static_cast<int64_t>(sizeof(uint32_t));
  const uint32_t* x = job.inputs;
  for (int64_t r = 0; r < job.run_count; ++r) {
    const CodeLayout::Run& run = job.runs[r];
    hn::Vec<I> acc[kVecs][kRows];
    add_run_codes<kBits, kRows, kVecs>(line, run.columns, x, acc);
    line += run.columns * kTileColumns * kBits / 8;
    x += run.columns / 4 * kRows;
    const float* scales = job.input_scales + r * kRows;
    const int32_t* integers = job.input_offsets + r * kRows;
    const float* sums = job.input_sums + r * kRows;
    for (int v = 0; v < kVecs; ++v) {
      const int64_t at = lane + v * kLanes;
      const V scale = load_scales(c, job.scales, run, at);
      const hn::Rebind<uint8_t, F> u8;
      auto zero = hn::Zero(I());
      if (is_stored)
        zero = hn::PromoteTo(I(), hn::LoadU(u8, reinterpret_cast<const uint8_t*>(job.scales + c.zeros) +
                                                    run.group * kTileColumns + at));
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m) {
        auto a = acc[v][m];
        if (is_stored)
          a = hn::Sub(a, hn::Mul(zero, hn::Set(I(), integers[m])));
        else if (!has_minima)
          a = hn::Sub(a, hn::Set(I(), c.scheme.zero * integers[m]));
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
constexpr int kTogether = kBits<8 && kVectors> 1 ? 2 : 1;

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

const KernelSet& int8_kernels_of_codes(const CodeLayout& codes) {
  constexpr auto kRows = std::make_integer_sequence<int, kMaxInt8Rows>();
  static const KernelSet four = make_int8_set<4>(kRows), five = make_int8_set<5>(kRows),
                         six = make_int8_set<6>(kRows), eight = make_int8_set<8>(kRows);
  return codes.bits == 4 ? four : codes.bits == 5 ? five : codes.bits == 6 ? six : eight;
}

}  // namespace HWY_NAMESPACE
}  // namespace outrider
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace outrider {

HWY_EXPORT(int8_kernels_of_codes);

const KernelSet& highway_int8_code_kernels(const CodeLayout& codes) {
  return HWY_DYNAMIC_DISPATCH(int8_kernels_of_codes)(codes);
}

}  // namespace outrider
#endif
