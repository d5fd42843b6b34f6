#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "transformer/ops/integer_dots.cpp"
#include <hwy/foreach_target.h>  // first: it re-includes this file for every instruction set

#include <hwy/highway.h>

#include "transformer/ops/integer_dots.h"

HWY_BEFORE_NAMESPACE();
namespace outrider {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using I32 = hn::CappedTag<int32_t, 16>;
using U32 = hn::RebindToUnsigned<I32>;
constexpr int64_t kLanes = hn::MaxLanes(I32());

// sum + low * low + high * high of the two 16-bit halves of each lane.
HWY_INLINE hn::Vec<I32> add_pairs(hn::Vec<U32> a, hn::Vec<U32> b, hn::Vec<I32> sum) {
#if HWY_TARGET == HWY_SCALAR
  const auto half = [](hn::Vec<U32> v, int shift) {
    return static_cast<int32_t>(static_cast<int16_t>(hn::GetLane(v) >> shift));
  };
  return hn::Set(I32(), hn::GetLane(sum) + half(a, 0) * half(b, 0) + half(a, 16) * half(b, 16));
#else
  const hn::Repartition<int16_t, I32> i16;
  hn::Vec<I32> rest = hn::Zero(I32());  // x86 leaves it alone; others split the sum over both
  sum = hn::ReorderWidenMulAccumulate(I32(), hn::BitCast(i16, a), hn::BitCast(i16, b), sum, rest);
  return hn::RearrangeToOddPlusEven(sum, rest);
#endif
}

template <int kStates>
void dots_of(const uint8_t* tile, int64_t quads, const uint32_t* states, int32_t* dots) {
  const U32 u;
  const auto bytes = hn::Set(u, 0x00ff00ffu);
  for (int64_t lane = 0; lane < kDotLanes; lane += kLanes) {
    hn::Vec<I32> sum[kStates];
    for (int s = 0; s < kStates; ++s) sum[s] = hn::LoadU(I32(), dots + s * kDotLanes + lane);
    const auto* line = reinterpret_cast<const uint32_t*>(tile) + lane;
    const uint32_t* x = states;
    for (int64_t q = 0; q < quads; ++q, line += kDotLanes, x += 2 * kStates) {
      const auto quad = hn::LoadU(u, line);
      const auto even = hn::And(quad, bytes), odd = hn::And(hn::ShiftRight<8>(quad), bytes);
      for (int s = 0; s < kStates; ++s) {
        sum[s] = add_pairs(even, hn::Set(u, x[s]), sum[s]);
        sum[s] = add_pairs(odd, hn::Set(u, x[kStates + s]), sum[s]);
      }
    }
    for (int s = 0; s < kStates; ++s) hn::StoreU(sum[s], I32(), dots + s * kDotLanes + lane);
  }
}

DotKernel kernel_for(int states) { return states == 1 ? dots_of<1> : states == 2 ? dots_of<2> : dots_of<4>; }

}  // namespace HWY_NAMESPACE
}  // namespace outrider
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace outrider {

HWY_EXPORT(kernel_for);

DotKernel dot_kernel(int states) { return HWY_DYNAMIC_DISPATCH(kernel_for)(states); }

}  // namespace outrider
#endif
