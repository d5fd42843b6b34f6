// The numbers that groups of codes share, for one vector of outputs, on whatever instruction set Highway
// compiles: included once for each (foreach_target.h).
#if defined(OUTRIDER_CODE_GROUPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OUTRIDER_CODE_GROUPS_INL_H_
#undef OUTRIDER_CODE_GROUPS_INL_H_
#else
#define OUTRIDER_CODE_GROUPS_INL_H_
#endif

#include <hwy/highway.h>

#include "kernels/cpu/packed_matrix.h"

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

// The scale of a run for one vector of outputs.
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

// The zero of a run less CodeLayout::number_base(), and its minimum.
HWY_INLINE V load_zeros(const CodeLayout& c, const std::byte* tile, const CodeLayout::Run& run,
                        int64_t lane) {
  return hn::Sub(load_bytes(tile + c.zeros + run.group * kTileColumns + lane),
                 hn::Set(F(), static_cast<float>(c.number_base())));
}
HWY_INLINE V load_minima(const CodeLayout& c, const std::byte* tile, const CodeLayout::Run& run,
                         int64_t lane) {
  if (c.scheme.scale != ScaleType::kNested)
    return load_halves(tile + c.minima + 2 * (run.group * kTileColumns + lane));
  return hn::Mul(load_halves(tile + c.outer_minima + 2 * (run.outer * kTileColumns + lane)),
                 load_signed_bytes(tile + c.minima + run.group * kTileColumns + lane));
}

}  // namespace HWY_NAMESPACE
}  // namespace outrider
HWY_AFTER_NAMESPACE();

#endif
