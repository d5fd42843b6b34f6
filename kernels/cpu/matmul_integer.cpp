// int8 and int4 weights for any instruction set, through Highway: bytes are widened to 16 bits and multiplied
// in pairs. Integer sums are exact and the arithmetic on scales is that of matmul_avx512_vnni.cpp, so the
// bits are the same. int4 has faster kernels where bytes are multiplied in pairs (matmul_codes_int8.cpp).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul_integer.cpp"
#include <hwy/foreach_target.h>  // first: it re-includes this file for every instruction set

#include <hwy/highway.h>

#include <utility>

#include "kernels/cpu/byte_quads-inl.h"
#include "kernels/cpu/matmul_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace outrider {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using F = hn::CappedTag<float, 16>;
using V = hn::Vec<F>;
constexpr int64_t kLanes = hn::MaxLanes(F());
constexpr int kVectors = kTileColumns / kLanes;
constexpr int kMaxRows = kLanes >= 16 ? 8 : kLanes >= 8 ? 4 : 1;
constexpr int one_stream(int) { return 1; }
constexpr int64_t kLineWords = kTileColumns;  // a line: one word of every output
constexpr int64_t kScaleBytes = kTileColumns * sizeof(bf16);

HWY_INLINE V load_scales(const std::byte* scales) {
  const hn::Rebind<uint16_t, F> u16;
  return hn::BitCast(F(), hn::ShiftLeft<16>(hn::PromoteTo(
                              U32(), hn::LoadU(u16, reinterpret_cast<const uint16_t*>(scales)))));
}

// One vector of outputs of one tile.
template <WeightType kType, int kRows>
HWY_INLINE void leaf_lanes(const LeafJob& job, int64_t lane) {
  constexpr int64_t kQuads = kType == WeightType::kInt8 ? 1 : 2;  // quadruples of columns in a line
  constexpr int64_t kGroupLines = group_columns(kType) / (4 * kQuads);
  const U32 u;
  V sum[kRows];
  for (V& v : sum) v = hn::Zero(F());
  const uint32_t* x = job.inputs;
  const auto* line = reinterpret_cast<const uint32_t*>(job.tile) + lane;
  int64_t left = job.columns / (4 * kQuads);
  for (int64_t g = 0; left > 0; ++g) {
    const int64_t lines = HWY_MIN(left, kGroupLines);
    left -= lines;
    hn::Vec<I32> acc[kRows];
    for (int m = 0; m < kRows; ++m) acc[m] = hn::Set(I32(), job.input_offsets[g * kRows + m]);
    for (int64_t i = 0; i < lines; ++i, line += kLineWords, x += 2 * kQuads * kRows) {
      const auto w = hn::Load(u, line);
      if constexpr (kType == WeightType::kInt8) {
        add_quad<kRows>(w, x, acc);
      } else {
        const auto low_halves = hn::Set(u, 0x0f0f0f0fu);
        add_quad<kRows>(hn::And(w, low_halves), x, acc);
        add_quad<kRows>(hn::And(hn::ShiftRight<4>(w), low_halves), x + 2 * kRows, acc);
      }
    }
    const V scales = load_scales(job.scales + g * kScaleBytes + lane * static_cast<int64_t>(sizeof(bf16)));
    for (int m = 0; m < kRows; ++m) {
      const V scale = hn::Mul(scales, hn::Set(F(), job.input_scales[g * kRows + m]));
      sum[m] = hn::MulAdd(hn::ConvertTo(F(), acc[m]), scale, sum[m]);
    }
  }
  for (int m = 0; m < kRows; ++m) hn::Store(sum[m], F(), job.sums + m * kTileColumns + lane);
}

template <WeightType kType, int kRows>
void leaf(const LeafJob& job) {
  for (int64_t i = 0; i < kVectors; ++i) leaf_lanes<kType, kRows>(job, i * kLanes);
}

template <WeightType kType, int... kRow>
KernelSet make_set(std::integer_sequence<int, kRow...>) {
  return {.layout = InputLayout::kShorts,
          .max_rows = kMaxRows,
          .streams = {0, one_stream(kRow)...},
          .many = {nullptr, leaf<kType, kRow + 1>...},
          .single = {nullptr, leaf<kType, kRow + 1>...}};
}

const KernelSet& integer_kernels(WeightType type) {
  constexpr auto kRows = std::make_integer_sequence<int, kMaxRows>();
  static const KernelSet int8 = make_set<WeightType::kInt8>(kRows), int4 = make_set<WeightType::kInt4>(kRows);
  return type == WeightType::kInt8 ? int8 : int4;
}

}  // namespace HWY_NAMESPACE
}  // namespace outrider
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace outrider {

HWY_EXPORT(integer_kernels);

const KernelSet& highway_integer_kernels(WeightType type) {
  return HWY_DYNAMIC_DISPATCH(integer_kernels)(type);
}

}  // namespace outrider
#endif
