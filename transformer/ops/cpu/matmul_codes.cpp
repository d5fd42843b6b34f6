// Codes of published checkpoints for any instruction set, through Highway: a weight becomes the fp32 number
// it stands for and is multiplied as one, column by column. So the sums are those of the same matrix in fp32
// (matmul_highway.cpp), bit for bit, and only the codes travel from memory.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "transformer/ops/cpu/matmul_codes.cpp"
#include <hwy/foreach_target.h>  // first: it re-includes this file for every instruction set

#include <hwy/highway.h>

#include <utility>

#include "transformer/ops/cpu/matmul_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace outrider {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using F = hn::CappedTag<float, 16>;
using U = hn::RebindToUnsigned<F>;
using I = hn::RebindToSigned<F>;
using V = hn::Vec<F>;
constexpr int64_t kLanes = hn::MaxLanes(F());
constexpr int kVectors = kTileColumns / kLanes;
constexpr int kMaxRows = kLanes >= 16 ? 8 : kLanes >= 8 ? 4 : 1;
// With few rows one tile's sums wait for each other.
constexpr int streams_of(int rows) { return kLanes >= 16 && rows <= 4 ? 2 : 1; }
constexpr int64_t kPrefetchBytes = 1024;

// Numbers of e2m1 codes: looked up where a register holds all of them or all magnitudes, else from whole
// halves.
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

template <CodeType kType>
HWY_INLINE V numbers_of(hn::Vec<U> word, int shift) {
  const U u;
  const I i;
  const auto code = hn::And(hn::ShiftRightSame(word, shift), hn::Set(u, code_bits(kType) == 4 ? 15 : 255));
  if constexpr (kType == CodeType::kE2m1) {
    return numbers_of_e2m1(code);
  } else if constexpr (kType != CodeType::kE4m3) {
    return hn::ConvertTo(F(), hn::BitCast(i, code));
  } else {  // a whole number of 2^-9, its sign, and NaN
    const auto magnitude = hn::And(code, hn::Set(u, 127)), exponent = hn::ShiftRight<3>(magnitude);
    const auto one = hn::Set(u, 1), mantissa = hn::And(code, hn::Set(u, 7));
    const auto normal = hn::Shl(hn::Or(mantissa, hn::Set(u, 8)), hn::Sub(hn::Max(exponent, one), one));
    const auto whole = hn::IfThenElse(hn::Eq(exponent, hn::Zero(u)), mantissa, normal);
    const V number = hn::Mul(hn::ConvertTo(F(), hn::BitCast(i, whole)), hn::Set(F(), 0x1p-9f));
    const auto sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(u, 128)));
    const auto nan = hn::Eq(magnitude, hn::Set(u, 127));
    return hn::BitCast(F(),
                       hn::IfThenElse(nan, hn::Set(u, 0x7fc00000u), hn::Or(hn::BitCast(u, number), sign)));
  }
}

HWY_INLINE V load_halves(const std::byte* at) {
  const hn::Rebind<hwy::float16_t, F> f16;
  return hn::PromoteTo(F(), hn::LoadU(f16, reinterpret_cast<const hwy::float16_t*>(at)));
}
HWY_INLINE V load_bf16(const std::byte* at) {
  const hn::Rebind<uint16_t, F> u16;
  return hn::BitCast(
      F(), hn::ShiftLeft<16>(hn::PromoteTo(U(), hn::LoadU(u16, reinterpret_cast<const uint16_t*>(at)))));
}
HWY_INLINE V load_signed_bytes(const std::byte* at) {
  const hn::Rebind<int8_t, F> i8;
  return hn::ConvertTo(F(), hn::PromoteTo(I(), hn::LoadU(i8, reinterpret_cast<const int8_t*>(at))));
}
HWY_INLINE V load_bytes(const std::byte* at) {
  const hn::Rebind<uint8_t, F> u8;
  return hn::ConvertTo(F(), hn::PromoteTo(I(), hn::LoadU(u8, reinterpret_cast<const uint8_t*>(at))));
}

HWY_INLINE V load_powers(const std::byte* at) {
  const U u;
  const hn::Rebind<uint8_t, F> u8;
  const auto code = hn::PromoteTo(u, hn::LoadU(u8, reinterpret_cast<const uint8_t*>(at)));
  const auto finite =
      hn::IfThenElse(hn::Eq(code, hn::Zero(u)), hn::Set(u, 0x00400000u), hn::ShiftLeft<23>(code));
  return hn::BitCast(F(), hn::IfThenElse(hn::Eq(code, hn::Set(u, 255)), hn::Set(u, 0x7fc00000u), finite));
}

HWY_INLINE V load_scales(const CodeLayout& c, const std::byte* tile, const CodeLayout::Run& run,
                         int64_t lane) {
  const int64_t at = run.group * kTileColumns + lane, outer = run.outer * kTileColumns + lane;
  switch (c.scheme.scale) {
    case ScaleType::kFloat32:
      return hn::LoadU(F(), reinterpret_cast<const float*>(tile + c.scales) + at);
    case ScaleType::kBFloat16:
      return load_bf16(tile + c.scales + 2 * at);
    case ScaleType::kFloat16:
      return load_halves(tile + c.scales + 2 * at);
    case ScaleType::kPowerOfTwo:
      return load_powers(tile + c.scales + at);
    case ScaleType::kNested:
      break;
  }
  return hn::Mul(load_halves(tile + c.outer_scales + 2 * outer), load_signed_bytes(tile + c.scales + at));
}

// What is taken from a number before it is scaled, or afterwards (minima).
HWY_INLINE V load_zeros(const CodeLayout& c, const std::byte* tile, const CodeLayout::Run& run,
                        int64_t lane) {
  const int64_t at = run.group * kTileColumns + lane, outer = run.outer * kTileColumns + lane;
  if (c.scheme.zero_type == ZeroType::kConstant) return hn::Set(F(), static_cast<float>(c.scheme.zero));
  if (c.scheme.zero_type == ZeroType::kStored) return load_bytes(tile + c.zeros + at);
  return hn::Mul(load_halves(tile + c.outer_minima + 2 * outer), load_signed_bytes(tile + c.minima + at));
}

template <CodeType kType, bool kMinima, int kRows, int kStreams>
void leaf_codes(const LeafJob& job) {
  constexpr int64_t kBits = code_bits(kType), kWordColumns = 32 / kBits;
  const U u;
  const CodeLayout& c = *job.codes;
  V sum[kStreams][kVectors][kRows];
  for (auto& stream : sum)
    for (auto& vector : stream)
      for (V& v : vector) v = hn::Zero(F());
  V scale[kStreams][kVectors], zero[kStreams][kVectors];
  const auto* inputs = reinterpret_cast<const float*>(job.inputs);
  // Columns [begin, end) of the leaf, all within one word.
  const auto add_columns = [&](int64_t begin, int64_t end) HWY_ATTR {
    const std::byte* at =
        job.tile + begin / kWordColumns * kTileColumns * static_cast<int64_t>(sizeof(uint32_t));
    hn::Vec<U> word[kStreams][kVectors];
    for (int s = 0; s < kStreams; ++s) {
      __builtin_prefetch(at + s * job.stream_stride + kPrefetchBytes);
      for (int i = 0; i < kVectors; ++i)
        word[s][i] = hn::LoadU(u, reinterpret_cast<const uint32_t*>(at + s * job.stream_stride) + i * kLanes);
    }
    for (int64_t k = begin; k < end; ++k) {
      const float* x = inputs + k * kRows;
      const int shift = static_cast<int>(k % kWordColumns * kBits);
      for (int s = 0; s < kStreams; ++s)
        for (int i = 0; i < kVectors; ++i) {
          const V number = numbers_of<kType>(word[s][i], shift);
          const V weight = kMinima ? hn::MulSub(number, scale[s][i], zero[s][i])
                                   : hn::Mul(hn::Sub(number, zero[s][i]), scale[s][i]);
          for (int m = 0; m < kRows; ++m) sum[s][i][m] = hn::MulAdd(weight, hn::Set(F(), x[m]), sum[s][i][m]);
        }
    }
  };
  for (int64_t r = 0; r < job.run_count; ++r) {
    const CodeLayout::Run& run = job.runs[r];
    for (int s = 0; s < kStreams; ++s)
      for (int i = 0; i < kVectors; ++i) {
        const std::byte* tile = job.scales + s * job.stream_stride;
        scale[s][i] = load_scales(c, tile, run, i * kLanes);
        zero[s][i] = load_zeros(c, tile, run, i * kLanes);
      }
    const int64_t end = run.begin + run.count;
    for (int64_t k = run.begin, next; k < end; k = next) {
      next = HWY_MIN(end, (k / kWordColumns + 1) * kWordColumns);
      add_columns(k, next);
    }
  }
  for (int s = 0; s < kStreams; ++s)
    for (int m = 0; m < kRows; ++m)
      for (int i = 0; i < kVectors; ++i)
        hn::Store(sum[s][i][m], F(), job.sums + (s * kRows + m) * kTileColumns + i * kLanes);
}

template <CodeType kType, bool kMinima, int... kRow>
KernelSet make_set(std::integer_sequence<int, kRow...>) {
  return {.layout = InputLayout::kFloats,
          .max_rows = kMaxRows,
          .streams = {0, streams_of(kRow + 1)...},
          .many = {nullptr, leaf_codes<kType, kMinima, kRow + 1, streams_of(kRow + 1)>...},
          .single = {nullptr, leaf_codes<kType, kMinima, kRow + 1, 1>...}};
}

const KernelSet& kernels_of_codes(const QuantScheme& scheme) {
  constexpr auto kRows = std::make_integer_sequence<int, kMaxRows>();
  static const KernelSet four = make_set<CodeType::kUnsigned4, false>(kRows),
                         four_minima = make_set<CodeType::kUnsigned4, true>(kRows),
                         eight = make_set<CodeType::kUnsigned8, false>(kRows),
                         float8 = make_set<CodeType::kE4m3, false>(kRows),
                         float4 = make_set<CodeType::kE2m1, false>(kRows);
  if (scheme.code == CodeType::kE2m1) return float4;
  if (scheme.code == CodeType::kE4m3) return float8;
  if (scheme.code == CodeType::kUnsigned8) return eight;
  return scheme.zero_type == ZeroType::kMinimum ? four_minima : four;
}

}  // namespace HWY_NAMESPACE
}  // namespace outrider
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace outrider {

HWY_EXPORT(kernels_of_codes);

const KernelSet& code_kernels(const QuantScheme& scheme) {
  CHECK(scheme.zero_type != ZeroType::kMinimum || scheme.code == CodeType::kUnsigned4, "minima of {} bits",
        code_bits(scheme.code));
  return HWY_DYNAMIC_DISPATCH(kernels_of_codes)(scheme);
}

}  // namespace outrider
#endif
