// Matmul kernels for any instruction set, through Highway. fp16 is widened to fp32, which no number is too
// small or too large for, so it has the bits of fp32 weights. bf16 pairs are widened to fp32 and multiplied
// by fused multiply-add, the odd column first: bit for bit what one AVX-512 dot product of bf16 pairs does.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul_highway.cpp"
#include <hwy/foreach_target.h>  // first: it re-includes this file for every instruction set

#include <hwy/highway.h>

#include <utility>

#include "kernels/cpu/matmul_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace outrider {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using F = hn::CappedTag<float, 16>;
using U = hn::RebindToUnsigned<F>;
using V = hn::Vec<F>;
constexpr int64_t kLanes = hn::MaxLanes(F());
constexpr int kVectors = kTileColumns / kLanes;

// AVX-512 has 32 registers, the others 16; some hold weights and inputs, and with more than this the compiler
// puts sums into memory (cached weights, two tiles, ns per KiB: 54 for 8 rows, 83 for 10, 120 for 12).
constexpr int kAccumulators = kLanes >= 16 ? 16 : 12;
constexpr int kMaxRows = kLanes >= 16 ? 16 : kLanes >= 8 ? 6 : 1;

constexpr int streams_of(int rows) {
  for (int streams = kMaxStreams; streams > 1; streams /= 2)
    if (rows * streams * kVectors <= kAccumulators) return streams;
  return 1;
}

// Far enough ahead to cover the latency of memory, near enough to stay in the cache. Many rows take long over
// a line, so a lot of lines may be on their way at once (16 rows: 1.62 times one row's time against 1.74).
constexpr int64_t prefetch_bytes(int rows) { return rows > 8 ? 8192 : 2048; }

template <int kRows, int kStreams>
HWY_INLINE void store(const V (&sum)[kStreams][kVectors][kRows], float* to) {
  for (int s = 0; s < kStreams; ++s)
    for (int m = 0; m < kRows; ++m)
      for (int i = 0; i < kVectors; ++i)
        hn::Store(sum[s][i][m], F(), to + (s * kRows + m) * kTileColumns + i * kLanes);
}

// Weights of type float or hwy::float16_t.
HWY_INLINE V load_weight(const float* from) { return hn::Load(F(), from); }
HWY_INLINE V load_weight(const hwy::float16_t* from) {
  return hn::PromoteTo(F(), hn::Load(hn::Rebind<hwy::float16_t, F>(), from));
}

template <class Weight, int kRows, int kStreams>
void leaf_wide(const LeafJob& job) {
  const auto* x = reinterpret_cast<const float*>(job.inputs);
  V sum[kStreams][kVectors][kRows];
  for (auto& stream : sum)
    for (auto& vector : stream)
      for (V& v : vector) v = hn::Zero(F());
  const std::byte* at = job.tile;
  for (int64_t k = 0; k < job.columns; ++k, at += kTileColumns * sizeof(Weight), x += kRows) {
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s) {
      const auto* w = reinterpret_cast<const Weight*>(at + s * job.stream_stride);
      __builtin_prefetch(at + s * job.stream_stride + prefetch_bytes(kRows));
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) {
        const V weight = load_weight(w + i * kLanes);
#pragma GCC unroll 16
        for (int m = 0; m < kRows; ++m) sum[s][i][m] = hn::MulAdd(weight, hn::Set(F(), x[m]), sum[s][i][m]);
      }
    }
  }
  store(sum, job.sums);
}

template <int kRows, int kStreams>
void leaf_bf16(const LeafJob& job) {
  const U u;
  const auto* x = reinterpret_cast<const float*>(job.inputs);
  V sum[kStreams][kVectors][kRows];
  for (auto& stream : sum)
    for (auto& vector : stream)
      for (V& v : vector) v = hn::Zero(F());
  const std::byte* at = job.tile;
  for (int64_t k = 0; k < job.columns; k += 2, at += kTileColumns * sizeof(uint32_t), x += 2 * kRows) {
    if constexpr (kRows > 8) {  // inputs of many rows stream from the second-level cache
      __builtin_prefetch(x + 16 * kRows);
      __builtin_prefetch(x + 17 * kRows);
    }
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s) {
      const auto* w = reinterpret_cast<const uint32_t*>(at + s * job.stream_stride);
      __builtin_prefetch(at + s * job.stream_stride + prefetch_bytes(kRows));
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) {
        const auto pair = hn::Load(u, w + i * kLanes);
        const V even = hn::BitCast(F(), hn::ShiftLeft<16>(pair));
        const V odd = hn::BitCast(F(), hn::And(pair, hn::Set(u, 0xffff0000u)));
#pragma GCC unroll 16
        for (int m = 0; m < kRows; ++m)
          sum[s][i][m] = hn::MulAdd(odd, hn::Set(F(), x[kRows + m]), sum[s][i][m]);
#pragma GCC unroll 16
        for (int m = 0; m < kRows; ++m) sum[s][i][m] = hn::MulAdd(even, hn::Set(F(), x[m]), sum[s][i][m]);
      }
    }
  }
  store(sum, job.sums);
}

template <class Weight, int... kRow>
KernelSet wide_set(std::integer_sequence<int, kRow...>) {
  return {.layout = InputLayout::kFloats,
          .max_rows = kMaxRows,
          .streams = {0, streams_of(kRow + 1)...},
          .many = {nullptr, leaf_wide<Weight, kRow + 1, streams_of(kRow + 1)>...},
          .single = {nullptr, leaf_wide<Weight, kRow + 1, 1>...}};
}

template <int... kRow>
KernelSet bf16_set(std::integer_sequence<int, kRow...>) {
  return {.layout = InputLayout::kFloats,
          .max_rows = kMaxRows,
          .streams = {0, streams_of(kRow + 1)...},
          .many = {nullptr, leaf_bf16<kRow + 1, streams_of(kRow + 1)>...},
          .single = {nullptr, leaf_bf16<kRow + 1, 1>...}};
}

const KernelSet& kernels(WeightType type) {
  constexpr auto kRows = std::make_integer_sequence<int, kMaxRows>();
  static const KernelSet fp32 = wide_set<float>(kRows), fp16 = wide_set<hwy::float16_t>(kRows),
                         bf16 = bf16_set(kRows);
  return type == WeightType::kFloat32 ? fp32 : type == WeightType::kFloat16 ? fp16 : bf16;
}

}  // namespace HWY_NAMESPACE
}  // namespace outrider
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace outrider {

HWY_EXPORT(kernels);

const KernelSet& highway_kernels(WeightType type) { return HWY_DYNAMIC_DISPATCH(kernels)(type); }

}  // namespace outrider
#endif
