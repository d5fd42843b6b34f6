// Codes of published checkpoints for any instruction set, through Highway. The arithmetic of all kernels of
// codes, of one output of a leaf, in fp32, every + a fused multiply-add (where there is one):
//   sum = 0; for each run of columns that share numbers:
//     a = 0; for each pair of columns (2i, 2i + 1) of the run: a += n[2i + 1] x[2i + 1]; a += n[2i] x[2i]
//     with stored zeros:  a += (base - zero) X              sum += a scale         with minima:  sum +=
//     -minimum X
// n is the number of a code less CodeLayout::number_base(), exact in bf16, x an input rounded to bf16, X the
// sum of the run's x (matmul_inputs.h). So a weight is the number its checkpoint means, unrounded, and a
// group is scaled once. Only the codes travel from memory.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul_codes.cpp"
#include <hwy/foreach_target.h>  // first: it re-includes this file for every instruction set

#include <hwy/highway.h>

#include <utility>

#include "kernels/cpu/code_groups-inl.h"
#include "kernels/cpu/matmul_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace outrider {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
constexpr int kMaxRows = kLanes >= 16 ? 8 : kLanes >= 8 ? 4 : 1;
// With few rows one tile's sums wait for each other.
constexpr int streams_of(int rows) { return kLanes < 16 ? 1 : rows <= 2 ? 4 : rows <= 4 ? 2 : 1; }
constexpr int64_t kPrefetchBytes = 1024;

// Numbers of e2m1 codes: a table lookup where one register holds all numbers or all magnitudes, else computed
// from doubled numbers, which are integers.
HWY_INLINE V numbers_of_e2m1(hn::Vec<U> code) {
  const U u;
  const I i;
  if constexpr (kLanes >= 16) {
    HWY_ALIGN static constexpr float kNumbers[]{0,     0.5f,  1,     1.5f,  2,     3,     4,     6,
                                                -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
    return hn::TableLookupLanes(hn::Load(F(), kNumbers), hn::IndicesFromVec(F(), hn::BitCast(i, code)));
  } else {
    const auto magnitude = hn::And(code, hn::Set(u, 7)),
               sign = hn::ShiftLeft<28>(hn::And(code, hn::Set(u, 8)));
    V number;
    if constexpr (kLanes == 8) {
      HWY_ALIGN static constexpr float kMagnitudes[]{0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
      number = hn::TableLookupLanes(hn::Load(F(), kMagnitudes),
                                    hn::IndicesFromVec(F(), hn::BitCast(i, magnitude)));
    } else {
      const auto exponent = hn::ShiftRight<1>(magnitude), one = hn::Set(u, 1);
      const auto mantissa = hn::And(magnitude, one);
      const auto normal = hn::Shl(hn::Or(mantissa, hn::Set(u, 2)), hn::Sub(hn::Max(exponent, one), one));
      const auto halves = hn::IfThenElse(hn::Eq(exponent, hn::Zero(u)), mantissa, normal);
      number = hn::Mul(hn::ConvertTo(F(), hn::BitCast(i, halves)), hn::Set(F(), 0.5f));
    }
    return hn::BitCast(F(), hn::Or(hn::BitCast(u, number), sign));
  }
}

// Numbers of the codes in the lowest bits of each lane, minus `base`.
template <CodeType kType>
HWY_INLINE V numbers_of(hn::Vec<U> code, V base) {
  if constexpr (kType == CodeType::kE2m1)
    return numbers_of_e2m1(code);
  else
    return hn::Sub(hn::ConvertTo(F(), hn::BitCast(I(), code)), base);
}

// One pair of columns of one vector of outputs: `word` has the even column's code in its lowest bits, the odd
// one's from bit kOdd on.
template <CodeType kType, int kOdd, int kRows>
HWY_INLINE void add_pair(hn::Vec<U> word, const float* x, V base, V (&acc)[kRows]) {
  const auto mask = hn::Set(U(), code_bits(kType) == 4 ? 15 : 255);
  const V odd = numbers_of<kType>(hn::And(hn::ShiftRight<kOdd>(word), mask), base);
  const V even = numbers_of<kType>(hn::And(word, mask), base);
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) acc[m] = hn::MulAdd(odd, hn::Set(F(), x[kRows + m]), acc[m]);
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) acc[m] = hn::MulAdd(even, hn::Set(F(), x[m]), acc[m]);
}

// As above for e4m3, whose pairs are the two halves of a word. The bits of a code, shifted, are the bits of
// an fp16 number of 1/256 of its value, subnormal or not.
template <int kRows>
HWY_INLINE void add_pair_of_e4m3(const uint16_t* pairs, const float* x, V (&acc)[kRows]) {
  const hn::Rebind<uint16_t, F> u16;
  const hn::Rebind<hwy::float16_t, F> f16;
  const auto pair = hn::LoadU(u16, pairs);
  const auto sign = hn::Set(u16, 0x8000), magnitude = hn::Set(u16, 0x3f80);
  const auto number = [&](auto moved_sign, auto moved) HWY_ATTR {
    const auto half = hn::Or(hn::And(moved_sign, sign), hn::And(moved, magnitude));
    return hn::Mul(hn::PromoteTo(F(), hn::BitCast(f16, half)), hn::Set(F(), 256.0f));
  };
  const V odd = number(pair, hn::ShiftRight<1>(pair));
  const V even = number(hn::ShiftLeft<8>(pair), hn::ShiftLeft<7>(pair));
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) acc[m] = hn::MulAdd(odd, hn::Set(F(), x[kRows + m]), acc[m]);
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) acc[m] = hn::MulAdd(even, hn::Set(F(), x[m]), acc[m]);
}

// A line: eight columns of 4 bits, four of 8.
template <CodeType kType, int kRows>
HWY_INLINE void add_line(const std::byte* line, int64_t lane, const float* x, V base, V (&acc)[kRows]) {
  if constexpr (code_bits(kType) == 4) {
    const auto word = hn::LoadU(U(), reinterpret_cast<const uint32_t*>(line) + lane);
    add_pair<kType, 16, kRows>(word, x, base, acc);
    add_pair<kType, 16, kRows>(hn::ShiftRight<4>(word), x + 2 * kRows, base, acc);
    add_pair<kType, 16, kRows>(hn::ShiftRight<8>(word), x + 4 * kRows, base, acc);
    add_pair<kType, 16, kRows>(hn::ShiftRight<12>(word), x + 6 * kRows, base, acc);
  } else if constexpr (kType == CodeType::kE4m3) {
    const auto* pairs = reinterpret_cast<const uint16_t*>(line) + lane;
    add_pair_of_e4m3<kRows>(pairs, x, acc);
    add_pair_of_e4m3<kRows>(pairs + kTileColumns, x + 2 * kRows, acc);
  } else {
    const hn::Rebind<uint16_t, F> u16;
    const auto* pairs = reinterpret_cast<const uint16_t*>(line) + lane;
    add_pair<kType, 8, kRows>(hn::PromoteTo(U(), hn::LoadU(u16, pairs)), x, base, acc);
    add_pair<kType, 8, kRows>(hn::PromoteTo(U(), hn::LoadU(u16, pairs + kTileColumns)), x + 2 * kRows, base,
                              acc);
  }
}

template <int kRows>
HWY_INLINE void add_run(const CodeLayout& c, const std::byte* tile, const CodeLayout::Run& run, int64_t lane,
                        const float* input_sums, V (&acc)[kRows], V (&sum)[kRows]) {
  const V scale = load_scales(c, tile, run, lane);
  if (c.scheme.zero_type == ZeroType::kStored) {
    const V zero = load_zeros(c, tile, run, lane);
    for (int m = 0; m < kRows; ++m) acc[m] = hn::NegMulAdd(zero, hn::Set(F(), input_sums[m]), acc[m]);
  }
  for (int m = 0; m < kRows; ++m) sum[m] = hn::MulAdd(acc[m], scale, sum[m]);
  if (c.scheme.zero_type == ZeroType::kMinimum) {
    const V minimum = load_minima(c, tile, run, lane);
    for (int m = 0; m < kRows; ++m) sum[m] = hn::NegMulAdd(minimum, hn::Set(F(), input_sums[m]), sum[m]);
  }
}

template <CodeType kType, int kRows, int kStreams>
void leaf_codes(const LeafJob& job) {
  constexpr int64_t kLineColumns = 32 / code_bits(kType), kLineBytes = 64;
  const CodeLayout& c = *job.codes;
  const V base = hn::Set(F(), static_cast<float>(c.number_base()));
  V sum[kStreams * kVectors][kRows];
  for (auto& vector : sum)
    for (V& v : vector) v = hn::Zero(F());
  const auto* x = reinterpret_cast<const float*>(job.inputs);
  const std::byte* at = job.tile;
  for (int64_t r = 0; r < job.run_count; ++r) {
    const CodeLayout::Run& run = job.runs[r];
    V acc[kStreams * kVectors][kRows];
    for (auto& vector : acc)
      for (V& v : vector) v = hn::Zero(F());
    for (int64_t k = 0; k < run.columns; k += kLineColumns, at += kLineBytes, x += kLineColumns * kRows) {
#pragma GCC unroll 4
      for (int s = 0; s < kStreams; ++s) {
        const std::byte* line = at + s * job.stream_stride;
        __builtin_prefetch(line + kPrefetchBytes);
#pragma GCC unroll 4
        for (int i = 0; i < kVectors; ++i)
          add_line<kType, kRows>(line, i * kLanes, x, base, acc[s * kVectors + i]);
      }
    }
    for (int s = 0; s < kStreams; ++s)
      for (int i = 0; i < kVectors; ++i)
        add_run<kRows>(c, job.scales + s * job.stream_stride, run, i * kLanes, job.input_scales + r * kRows,
                       acc[s * kVectors + i], sum[s * kVectors + i]);
  }
  for (int s = 0; s < kStreams; ++s)
    for (int i = 0; i < kVectors; ++i)
      for (int m = 0; m < kRows; ++m)
        hn::Store(sum[s * kVectors + i][m], F(), job.sums + (s * kRows + m) * kTileColumns + i * kLanes);
}

template <CodeType kType, int... kRow>
KernelSet make_set(std::integer_sequence<int, kRow...>) {
  return {.layout = InputLayout::kFloats,
          .max_rows = kMaxRows,
          .streams = {0, streams_of(kRow + 1)...},
          .many = {nullptr, leaf_codes<kType, kRow + 1, streams_of(kRow + 1)>...},
          .single = {nullptr, leaf_codes<kType, kRow + 1, 1>...}};
}

const KernelSet& kernels_of_codes(const QuantScheme& scheme) {
  constexpr auto kRows = std::make_integer_sequence<int, kMaxRows>();
  static const KernelSet four = make_set<CodeType::kUnsigned4>(kRows),
                         eight = make_set<CodeType::kUnsigned8>(kRows),
                         float8 = make_set<CodeType::kE4m3>(kRows), float4 = make_set<CodeType::kE2m1>(kRows);
  if (scheme.code == CodeType::kE2m1) return float4;
  if (scheme.code == CodeType::kE4m3) return float8;
  return scheme.code == CodeType::kUnsigned8 ? eight : four;
}

}  // namespace HWY_NAMESPACE
}  // namespace outrider
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace outrider {

HWY_EXPORT(kernels_of_codes);

const KernelSet& highway_code_kernels(const QuantScheme& scheme) {
  return HWY_DYNAMIC_DISPATCH(kernels_of_codes)(scheme);
}

}  // namespace outrider
#endif
