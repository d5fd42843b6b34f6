#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "transformer/ops/matmul_inputs.cpp"
#include <hwy/foreach_target.h>  // first: it re-includes this file for every instruction set

#include <hwy/highway.h>

#include "transformer/ops/matmul_inputs.h"

HWY_BEFORE_NAMESPACE();
namespace outrider {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using F = hn::CappedTag<float, 16>;
using U = hn::RebindToUnsigned<F>;
constexpr int64_t kLanes = hn::MaxLanes(F());

// base/bfloat16.h's to_bf16, left in the upper half of each word; not for NaN, which no bit is promised for.
HWY_INLINE hn::Vec<U> round_bf16(hn::Vec<U> bits) {
  const U u;
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1));
  return hn::And(hn::Add(bits, hn::Add(odd, hn::Set(u, 0x7fff))), hn::Set(u, 0xffff0000u));
}

// Up to kChunk columns of one row, rounded, as words.
constexpr int64_t kChunk = 64;
HWY_INLINE void read_chunk(const float* x, int64_t count, bool round, uint32_t* words) {
  const U u;
  HWY_ALIGN float tail[kLanes] = {};
  for (int64_t i = 0; i < count; i += kLanes) {
    const float* from = x + i;
    if (i + kLanes > count) {
      for (int64_t j = 0; i + j < count; ++j) tail[j] = x[i + j];
      from = tail;
    }
    const auto bits = hn::BitCast(u, hn::LoadU(F(), from));
    const auto is_nan = hn::RebindMask(u, hn::IsNaN(hn::LoadU(F(), from)));
    hn::Store(round ? hn::IfThenElse(is_nan, hn::Set(u, 0x7fc00000u), round_bf16(bits)) : bits, u, words + i);
  }
}

void lay_out(TensorView<const float, 2> x, int64_t begin, int64_t end, const RowBlocks& blocks,
             int64_t padded_k, InputLayout layout, bool round, uint32_t* words) {
  const bool pairs = layout == InputLayout::kPairs;
  HWY_ALIGN uint32_t chunk[kChunk + kLanes];
  for (int64_t block = 0; block < blocks.count; ++block) {
    const int64_t rows = blocks.rows_of(block);
    uint32_t* to_block = words + blocks.first(block) * (pairs ? padded_k / 2 : padded_k);
    for (int64_t k = begin; k < end; k += kChunk) {
      const int64_t count = HWY_MIN(kChunk, end - k), padded = (count + 1) / 2 * 2;
      for (int64_t m = 0; m < rows; ++m) {
        read_chunk(x.data() + (blocks.first(block) + m) * x.stride(0) + k, count, round, chunk);
        for (int64_t i = count; i < padded; ++i) chunk[i] = 0;
        if (pairs) {
          uint32_t* to = to_block + k / 2 * rows + m;
          for (int64_t i = 0; i < padded; i += 2) to[i / 2 * rows] = chunk[i] >> 16 | chunk[i + 1];
        } else {
          uint32_t* to = to_block + k * rows + m;
          for (int64_t i = 0; i < padded; ++i) to[i * rows] = chunk[i];
        }
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace outrider
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace outrider {

HWY_EXPORT(lay_out);

void lay_out_inputs(TensorView<const float, 2> x, int64_t begin, int64_t end, const RowBlocks& blocks,
                    int64_t padded_k, InputLayout layout, bool round, uint32_t* words) {
  HWY_DYNAMIC_DISPATCH(lay_out)(x, begin, end, blocks, padded_k, layout, round, words);
}

}  // namespace outrider
#endif
