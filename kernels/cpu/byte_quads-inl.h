// Bytes times 16-bit integers, exactly, for whatever instruction set Highway compiles: included once for each
// (foreach_target.h).
#if defined(OUTRIDER_BYTE_QUADS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OUTRIDER_BYTE_QUADS_INL_H_
#undef OUTRIDER_BYTE_QUADS_INL_H_
#else
#define OUTRIDER_BYTE_QUADS_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace outrider {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using I32 = hn::CappedTag<int32_t, 16>;
using U32 = hn::RebindToUnsigned<I32>;

// sum + low * low + high * high of the two 16-bit halves of each lane.
HWY_INLINE hn::Vec<I32> dot_pairs(hn::Vec<U32> a, hn::Vec<U32> b, hn::Vec<I32> sum) {
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

// acc += four columns: the bytes of `quad` times the words of kShorts inputs.
template <int kRows>
HWY_INLINE void add_quad(hn::Vec<U32> quad, const uint32_t* x, hn::Vec<I32> (&acc)[kRows]) {
  const U32 u;
  const auto mask = hn::Set(u, 0x00ff00ffu);
  const auto even = hn::And(quad, mask), odd = hn::And(hn::ShiftRight<8>(quad), mask);
  for (int m = 0; m < kRows; ++m) {
    acc[m] = dot_pairs(even, hn::Set(u, x[m]), acc[m]);
    acc[m] = dot_pairs(odd, hn::Set(u, x[kRows + m]), acc[m]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace outrider
HWY_AFTER_NAMESPACE();

#endif
