// Codes of published checkpoints times inputs quantised to int8. The arithmetic of one output of a leaf, in
// fp32 but for the integers, every + a fused multiply-add (where there is one):
//   sum = 0; for each run of columns that share numbers:
//     a = the sum of code * q over the run, less zero * Q         an exact integer
//     sum += a * (scale * s)          with minima: sum += -minimum * (s * Q)
// q are the integers of the inputs, s their scale and Q their sum (matmul_inputs.h). Integer sums are exact
// in any order, so every instruction set that has fused multiply-add gives the same bits.
//
// AVX2 multiplies bytes in pairs (maddubs). A pair's sum has 16 bits. It is at most 2 * 15 * 127 for a half
// of a byte, so the sums of the eight pairs of a run of 32 columns stay below 2^15. A code of 8 bits counts
// as two halves. Two pairs of codes of 6 bits stay below 2^15, and four pairs of 5 bits. Codes of 5 or 6 bits
// whose zero is the middle (16, 32) need no sums between: the sum of a run is a number of 16 bits once the
// zero is taken from every code. The kernel starts at -zero * (sums of the inputs) and lets 16 bits wrap on
// the way.
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
constexpr int64_t kCodePrefetchBytes = 4096;
static_assert(kActivationGroup / 4 * 2 * 15 * 127 < 1 << 15, "the pairs of a run overflow");
static_assert(2 * 2 * 63 * 127 < 1 << 15 && 4 * 2 * 31 * 127 < 1 << 15, "the pairs of planes overflow");
static_assert(4 * 2 * 32 * 127 < 1 << 15 && 8 * 2 * 16 * 127 < 1 << 15, "codes less their zero overflow");

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
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
// sum += the pairs. As one statement: the compiler would compute all products first, and they need more
// registers than there are.
HWY_INLINE void add_pairs(Pairs& sum, hn::Vec<U> halves, hn::Vec<U> x) {
  Pairs product;
  asm("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0"
      : "+v"(sum.raw), "=&v"(product.raw)
      : "v"(halves.raw), "v"(x.raw));
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
      Pairs pairs = multiply_pairs(quad[0], hn::Set(u, x[m]));
      add_pairs(pairs, quad[1], hn::Set(u, x[kRows + m]));
      if constexpr (kBits == 6) {
        sum[v][m] = dot_pairs(hn::BitCast(u, pairs), ones, sum[v][m]);
        pairs = multiply_pairs(quad[2], hn::Set(u, x[2 * kRows + m]));
      } else {
        add_pairs(pairs, quad[2], hn::Set(u, x[2 * kRows + m]));
      }
      add_pairs(pairs, quad[3], hn::Set(u, x[3 * kRows + m]));
      sum[v][m] = dot_pairs(hn::BitCast(u, pairs), ones, sum[v][m]);
      asm("" : "+v"(sum[v][m].raw));
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
        add_pairs(pairs[0][v][m], low[v], first);
        add_pairs(pairs[kSides - 1][v][m], high[v], second);
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

// Numbers that all codes of a run share, for one vector of outputs.
struct RunNumbers {
  V scale, zero, minimum;  // zero: less the constant that unpacking took from the codes
};
HWY_INLINE RunNumbers load_run_numbers(const LeafJob& job, const CodeLayout::Run& run, int64_t lane) {
  const CodeLayout& c = *job.codes;
  RunNumbers n{load_scales(c, job.scales, run, lane), hn::Zero(F()), hn::Zero(F())};
  if (c.scheme.zero_type == ZeroType::kStored)
    n.zero = load_bytes(job.scales + c.zeros + run.group * kTileColumns + lane);
  else if (c.scheme.zero_type == ZeroType::kMinimum)
    n.minimum = load_minima(c, job.scales, run, lane);
  else
    n.zero = hn::Set(F(), static_cast<float>(c.scheme.zero));
  return n;
}

// How the zero of a scheme is taken from the sum of a run.
enum class Zeros : uint8_t { kOfSums, kMinima, kTaken };
HWY_INLINE Zeros zeros_of(const CodeLayout& c, bool is_taken) {
  if (is_taken) return Zeros::kTaken;
  return c.scheme.zero_type == ZeroType::kMinimum ? Zeros::kMinima : Zeros::kOfSums;
}

// sum + the product of one run and one input. Numbers of integers are exact in fp32: below 2^24.
HWY_INLINE V add_product(V sum, hn::Vec<I> integers, const RunNumbers& n, Zeros zeros, const LeafJob& job,
                         int64_t at) {
  V a = hn::ConvertTo(F(), integers);
  if (zeros == Zeros::kOfSums)
    a = hn::NegMulAdd(n.zero, hn::ConvertTo(F(), hn::Set(I(), job.input_offsets[at])), a);
  sum = hn::MulAdd(a, hn::Mul(n.scale, hn::Set(F(), job.input_scales[at])), sum);
  if (zeros == Zeros::kMinima) sum = hn::NegMulAdd(n.minimum, hn::Set(F(), job.input_sums[at]), sum);
  return sum;
}

// A few rows: kVecs vectors of outputs of a tile from `lane` on, whose codes are unpacked into registers.
template <int kBits, int kRows, int kVecs>
HWY_INLINE void leaf_lanes_int8(const LeafJob& job, int64_t lane) {
  const Zeros zeros = zeros_of(*job.codes, false);
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
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) {
      const RunNumbers numbers = load_run_numbers(job, run, lane + v * kLanes);
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m)
        sum[v][m] = add_product(sum[v][m], acc[v][m], numbers, zeros, job, r * kRows + m);
    }
  }
  for (int v = 0; v < kVecs; ++v)
    for (int m = 0; m < kRows; ++m)
      hn::Store(sum[v][m], F(), job.sums + m * kTileColumns + lane + v * kLanes);
}

// As many rows as registers hold sums of, for as many vectors as share what is read.
constexpr int kFewRows = kLanes >= 16 ? 8 : kLanes >= 8 ? 4 : 1;
template <int kBits>
constexpr int kTogether = kBits<8 && kVectors> 1 ? 2 : 1;

template <int kBits, int kRows>
void leaf_of_few_rows(const LeafJob& shared) {
  const LeafJob job = shared;  // vectors that are stored might lie in a job that others see
  constexpr int kVecs = kTogether<kBits>;
  for (int64_t i = 0; i < kVectors; i += kVecs) leaf_lanes_int8<kBits, kRows, kVecs>(job, i * kLanes);
}

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
// More rows: the codes of a run are unpacked once, into a buffer that stays in the first cache, and the sums
// of a leaf stay in memory.
constexpr int kMaxInt8Rows = kMaxBlockRows;
constexpr int64_t kVectorBytes = kLanes * sizeof(uint32_t);

// Vectors of bytes for every four columns: codes of 8 bits are unpacked as two halves.
template <int kBits>
constexpr int kSidesOf = kBits == 8 ? 2 : 1;
template <int kBits>
using RunBuffer = uint32_t[kActivationGroup / 4 * kSidesOf<kBits>][kTileColumns];

template <int kBits, int kQuad>
HWY_INLINE void unpack_two_quads(const std::byte* line, hn::Vec<U> upper, RunBuffer<kBits>& to, int64_t at,
                                 int v) {
  hn::Vec<U> first, second;
  unpack_planes<kBits, kQuad>(line + kQuad / 2 * kCodeLineBytes + v * kVectorBytes, upper, first, second);
  hn::Store(first, U(), to[at + kQuad] + v * kLanes);
  hn::Store(second, U(), to[at + kQuad + 1] + v * kLanes);
}

template <int kBits>
HWY_INLINE void unpack_run(const std::byte* lines, int64_t columns, RunBuffer<kBits>& to) {
  const U u;
  int64_t at = 0;
  for (int64_t k = 0; k < columns; k += kColumnsTogether<kBits>, lines += kBytesTogether<kBits>) {
    for (int64_t i = 0; i < kBytesTogether<kBits>; i += kCodeLineBytes)
      __builtin_prefetch(lines + i + kCodePrefetchBytes);
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      if constexpr (kHasPlanes<kBits>) {
        const auto upper = hn::LoadU(u, reinterpret_cast<const uint32_t*>(lines + kBytesTogether<kBits> -
                                                                          kCodeLineBytes + v * kVectorBytes));
        unpack_two_quads<kBits, 0>(lines, upper, to, at, v);
        unpack_two_quads<kBits, 2>(lines, upper, to, at, v);
        if constexpr (kBits == 5) {
          unpack_two_quads<kBits, 4>(lines, upper, to, at, v);
          unpack_two_quads<kBits, 6>(lines, upper, to, at, v);
        }
      } else {
        const auto mask = hn::Set(u, 0x0f0f0f0fu);
        const auto w = hn::LoadU(u, reinterpret_cast<const uint32_t*>(lines + v * kVectorBytes));
        hn::Store(hn::And(w, mask), u, to[at] + v * kLanes);
        hn::Store(hn::And(hn::ShiftRight<4>(w), mask), u, to[at + 1] + v * kLanes);
      }
    }
    at += kHasPlanes<kBits> ? kColumnsTogether<kBits> / 4 : 2;
  }
}

// Rows that are multiplied together: sums of all outputs of a tile fit the registers.
template <int kBits, bool kIsZeroTaken>
constexpr int kGroupRows = (kLanes >= 16 ? 8 : 4) /
                           (kBits == 8 || (kHasPlanes<kBits> && !kIsZeroTaken) ? 2 : 1);
// Quads whose pairs 16 bits hold the sum of.
template <int kBits, bool kIsZeroTaken>
constexpr int kQuadsBetween = kIsZeroTaken || !kHasPlanes<kBits> ? 8
                              : kBits == 5                       ? 4
                                                                 : 2;

// Exact sums of kCount of the block's `rows` inputs over a run of `quads` * 4 columns. starts: a word for
// each input, where the zero is taken.
template <int kBits, int kCount, bool kIsZeroTaken>
HWY_INLINE void multiply_run(const RunBuffer<kBits>& codes, int quads, const uint32_t* x, int64_t rows,
                             const int32_t* starts, hn::Vec<I> (&sum)[kVectors][kCount]) {
  const U u;
  constexpr int kSides = kSidesOf<kBits>, kBetween = kQuadsBetween<kBits, kIsZeroTaken>;
  const auto ones = hn::Set(u, 0x00010001u), sixteens = hn::Set(u, 0x00100010u);
  for (int begin = 0; begin < quads; begin += kBetween) {
    const int end = HWY_MIN(quads, begin + kBetween);
    Pairs pairs[kSides][kVectors][kCount];
    for (auto& side : pairs)
#pragma GCC unroll 2
      for (auto& vector : side)
#pragma GCC unroll 8
        for (int m = 0; m < kCount; ++m)
          vector[m] = kIsZeroTaken
                          ? Pairs{hn::BitCast(hn::Repartition<int16_t, F>(), hn::Set(I(), starts[m]))}
                          : hn::Zero(hn::Repartition<int16_t, F>());
#pragma GCC unroll 8
    for (int q = begin; q < end; ++q) {
      hn::Vec<U> w[kSides][kVectors];
#pragma GCC unroll 2
      for (int side = 0; side < kSides; ++side)
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) w[side][v] = hn::Load(u, codes[q * kSides + side] + v * kLanes);
#pragma GCC unroll 8
      for (int m = 0; m < kCount; ++m) {
        const auto input = hn::Set(u, x[m]);
#pragma GCC unroll 2
        for (int side = 0; side < kSides; ++side)
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v) add_pairs(pairs[side][v][m], w[side][v], input);
      }
      x += rows;
    }
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v)
#pragma GCC unroll 8
      for (int m = 0; m < kCount; ++m) {
        const auto before = begin == 0 ? hn::Zero(I()) : sum[v][m];
        sum[v][m] = dot_pairs(hn::BitCast(u, pairs[0][v][m]), ones, before);
        if constexpr (kSides == 2) sum[v][m] = dot_pairs(hn::BitCast(u, pairs[1][v][m]), sixteens, sum[v][m]);
      }
  }
}

// The columns of a run of most formats: their number is known to the compiler.
template <int kBits>
constexpr int kUsualQuads = (kBits == 6 ? 16 : 32) / 4;

// A run of a leaf, unpacked, and its part of the inputs.
template <int kBits>
struct UnpackedRun {
  const LeafJob& job;
  const RunBuffer<kBits>& codes;
  int64_t index;
  const uint32_t* x;
  const RunNumbers (&numbers)[kVectors];
  Zeros zeros;
};

// kCount inputs from `first` on: the sums of a leaf += one run.
template <int kBits, int kCount, bool kIsZeroTaken>
HWY_INLINE void add_run_of_rows(const UnpackedRun<kBits>& run, int first) {
  const LeafJob& job = run.job;
  hn::Vec<I> sum[kVectors][kCount];
  const int quads = job.runs[run.index].columns / 4;
  const int64_t at = run.index * job.rows + first;
  if (quads == kUsualQuads<kBits>)
    multiply_run<kBits, kCount, kIsZeroTaken>(run.codes, kUsualQuads<kBits>, run.x + first, job.rows,
                                              job.input_offsets + at, sum);
  else
    multiply_run<kBits, kCount, kIsZeroTaken>(run.codes, quads, run.x + first, job.rows,
                                              job.input_offsets + at, sum);
  float* to = job.sums + first * kTileColumns;
#pragma GCC unroll 8
  for (int m = 0; m < kCount; ++m, to += kTileColumns)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const V before = hn::Load(F(), to + v * kLanes);
      hn::Store(add_product(before, sum[v][m], run.numbers[v], run.zeros, job, at + m), F(), to + v * kLanes);
    }
}

// The inputs from `first` on, fewer than 2 * kCount.
template <int kBits, int kCount, bool kIsZeroTaken>
HWY_INLINE void add_run_of_rest(const UnpackedRun<kBits>& run, int first) {
  const int rest = run.job.rows - first;
  if constexpr (kCount == 2)
    if (rest == 3) return add_run_of_rows<kBits, 3, kIsZeroTaken>(run, first);
  if (rest >= kCount) {
    add_run_of_rows<kBits, kCount, kIsZeroTaken>(run, first);
    first += kCount;
  }
  if constexpr (kCount > 1) add_run_of_rest<kBits, kCount / 2, kIsZeroTaken>(run, first);
}

// Takes any number of rows: one function, since the compiler takes seconds for each.
template <int kBits, bool kIsZeroTaken>
void leaf_of_rows(const LeafJob& shared) {
  const LeafJob job = shared;  // vectors that are stored might lie in a job that others see
  constexpr int kGroup = kGroupRows<kBits, kIsZeroTaken>;
  const Zeros zeros = zeros_of(*job.codes, kIsZeroTaken);
  HWY_ALIGN RunBuffer<kBits> codes;
  for (int64_t i = 0; i < job.rows * kTileColumns; i += kLanes) hn::Store(hn::Zero(F()), F(), job.sums + i);
  const std::byte* lines = job.tile;
  const uint32_t* x = job.inputs;
  for (int64_t r = 0; r < job.run_count; ++r) {
    const CodeLayout::Run& run = job.runs[r];
    unpack_run<kBits>(lines, run.columns, codes);
    RunNumbers numbers[kVectors];
    for (int v = 0; v < kVectors; ++v) numbers[v] = load_run_numbers(job, run, v * kLanes);
    const UnpackedRun<kBits> unpacked{job, codes, r, x, numbers, zeros};
    int m = 0;
    for (; m + kGroup <= job.rows; m += kGroup) add_run_of_rows<kBits, kGroup, kIsZeroTaken>(unpacked, m);
    if constexpr (kGroup > 1) add_run_of_rest<kBits, kGroup / 2, kIsZeroTaken>(unpacked, m);
    lines += run.columns * kTileColumns * kBits / 8;
    x += run.columns / 4 * job.rows;
  }
}

template <int kBits, int kRows, bool kIsZeroTaken>
constexpr LeafKernel leaf_int8() {
  if constexpr (kRows <= kFewRows && !kIsZeroTaken)
    return leaf_of_few_rows<kBits, kRows>;
  else
    return leaf_of_rows<kBits, kIsZeroTaken>;
}
#else
constexpr int kMaxInt8Rows = kFewRows;

template <int kBits, int kRows, bool kIsZeroTaken>
constexpr LeafKernel leaf_int8() {
  return leaf_of_few_rows<kBits, kRows>;
}
#endif

constexpr int one_tile(int) { return 1; }

template <int kBits, bool kIsZeroTaken, int... kRow>
KernelSet make_int8_set(std::integer_sequence<int, kRow...>) {
  return {.layout = InputLayout::kBytes,
          .max_rows = kMaxInt8Rows,
          .streams = {0, one_tile(kRow)...},
          .many = {nullptr, leaf_int8<kBits, kRow + 1, kIsZeroTaken>()...},
          .single = {nullptr, leaf_int8<kBits, kRow + 1, kIsZeroTaken>()...},
          .zero_taken = kIsZeroTaken ? 1 << (kBits - 1) : 0};
}

const KernelSet& int8_kernels_of_codes(const CodeLayout& codes) {
  constexpr auto kRows = std::make_integer_sequence<int, kMaxInt8Rows>();
  static const KernelSet four = make_int8_set<4, false>(kRows), five = make_int8_set<5, false>(kRows),
                         six = make_int8_set<6, false>(kRows), eight = make_int8_set<8, false>(kRows);
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  static const KernelSet middle_five = make_int8_set<5, true>(kRows),
                         middle_six = make_int8_set<6, true>(kRows);
  if (codes.scheme.zero_type == ZeroType::kConstant) {
    if (codes.bits == 5 && codes.scheme.zero == 16) return middle_five;
    if (codes.bits == 6 && codes.scheme.zero == 32 && codes.scheme.group <= 16) return middle_six;
  }
#endif
  return codes.bits == 4 ? four : codes.bits == 5 ? five : codes.bits == 6 ? six : eight;
}

// Multiplying bytes in pairs takes half of the instructions that 16-bit inputs take (matmul_integer.cpp).
const KernelSet* int4_kernels_of_codes() {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  static const KernelSet set = [] {
    KernelSet four = make_int8_set<4, false>(std::make_integer_sequence<int, kMaxInt8Rows>());
    four.of_codes = true;
    return four;
  }();
  return &set;
#else
  return nullptr;
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace outrider
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace outrider {

HWY_EXPORT(int8_kernels_of_codes);
HWY_EXPORT(int4_kernels_of_codes);

const KernelSet& highway_int8_code_kernels(const CodeLayout& codes) {
  return HWY_DYNAMIC_DISPATCH(int8_kernels_of_codes)(codes);
}
const KernelSet* highway_int4_code_kernels() { return HWY_DYNAMIC_DISPATCH(int4_kernels_of_codes)(); }

}  // namespace outrider
#endif
