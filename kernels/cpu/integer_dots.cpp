#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/integer_dots.cpp"
#include <hwy/foreach_target.h>  // first: it re-includes this file for every instruction set

#include <hwy/highway.h>

#include "kernels/cpu/byte_quads-inl.h"
#include "kernels/cpu/integer_dots.h"

HWY_BEFORE_NAMESPACE();
namespace outrider {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
constexpr int64_t kLanes = hn::MaxLanes(I32());

template <int kStates>
void dots_of(const uint8_t* tile, int64_t quads, const uint32_t* states, int32_t* dots) {
  const U32 u;
  for (int64_t lane = 0; lane < kDotLanes; lane += kLanes) {
    hn::Vec<I32> sum[kStates];
    for (int s = 0; s < kStates; ++s) sum[s] = hn::LoadU(I32(), dots + s * kDotLanes + lane);
    const auto* line = reinterpret_cast<const uint32_t*>(tile) + lane;
    const uint32_t* x = states;
    for (int64_t q = 0; q < quads; ++q, line += kDotLanes, x += 2 * kStates)
      add_quad<kStates>(hn::LoadU(u, line), x, sum);
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
