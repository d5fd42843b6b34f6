// matmul for any instruction set, through Highway. Lanes are output columns: every output is one fma chain
// over k in order, so neither the vector width of the loop over columns nor the number of rows can change it.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "transformer/ops/matmul_cpu.cpp"
#include <hwy/foreach_target.h>  // first: it re-includes this file for every instruction set

#include <hwy/highway.h>

#include "transformer/ops/matmul_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace outrider {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using F = hn::CappedTag<float, 16>;
using U = hn::RebindToUnsigned<F>;
using V = hn::Vec<F>;
constexpr int64_t kLanes = hn::MaxLanes(F());
constexpr int64_t kVectors = kTileColumns / kLanes;

template <int kRows>
struct Block {
  V sum[kRows][kVectors];

  HWY_INLINE void clear() {
    for (auto& row : sum)
      for (V& v : row) v = hn::Zero(F());
  }
  HWY_INLINE Block& operator+=(const Block& later) {
    for (int m = 0; m < kRows; ++m)
      for (int64_t i = 0; i < kVectors; ++i) sum[m][i] = hn::Add(sum[m][i], later.sum[m][i]);
    return *this;
  }
};

template <int kRows>
HWY_INLINE void leaf_fp32(const float* tile, const float* x, int64_t stride, int64_t begin, int64_t end,
                          Block<kRows>& block) {
  const F f;
  for (int64_t k = begin; k < end; ++k) {
    for (int64_t i = 0; i < kVectors; ++i) {
      const V w = hn::Load(f, tile + k * kTileColumns + i * kLanes);
      for (int m = 0; m < kRows; ++m)
        block.sum[m][i] = hn::MulAdd(w, hn::Set(f, x[m * stride + k]), block.sum[m][i]);
    }
  }
}

template <int kRows>
HWY_INLINE void leaf_bf16(const uint32_t* tile, const float* x, int64_t stride, int64_t begin, int64_t end,
                          Block<kRows>& block) {
  const F f;
  const U u;
  for (int64_t k = begin; k < end; k += 2) {
    for (int64_t i = 0; i < kVectors; ++i) {
      const auto pair = hn::Load(u, tile + k / 2 * kTileColumns + i * kLanes);
      const V even = hn::BitCast(f, hn::ShiftLeft<16>(pair));
      const V odd = hn::BitCast(f, hn::And(pair, hn::Set(u, 0xffff0000u)));
      for (int m = 0; m < kRows; ++m) {
        block.sum[m][i] = hn::MulAdd(even, hn::Set(f, x[m * stride + k]), block.sum[m][i]);
        block.sum[m][i] = hn::MulAdd(odd, hn::Set(f, x[m * stride + k + 1]), block.sum[m][i]);
      }
    }
  }
}

template <int kRows>
HWY_INLINE void leaf(const MatmulJob& job, const std::byte* tile, const float* x, int64_t begin, int64_t end,
                     Block<kRows>& block) {
  block.clear();
  if (job.weight->type() == WeightType::kBFloat16)
    leaf_bf16<kRows>(reinterpret_cast<const uint32_t*>(tile), x, job.input_stride, begin, end, block);
  else
    leaf_fp32<kRows>(reinterpret_cast<const float*>(tile), x, job.input_stride, begin, end, block);
}

template <int kRows>
void tile_rows(const MatmulJob& job, int64_t t, int64_t first_row) {
  const std::byte* tile = job.weight->tile(t);
  const float* x = reinterpret_cast<const float*>(job.inputs) + first_row * job.input_stride;
  const auto& ends = job.weight->leaf_ends();
  Block<kRows> result;
  if (ends.size() == 1) {
    leaf<kRows>(job, tile, x, 0, job.weight->padded_k(), result);
  } else {
    Block<kRows> levels[kTreeLevels] = {};
    int count = 0, level = 0;
    int64_t begin = 0;
    for (int64_t end : ends) {
      const int64_t padded_end = end == job.weight->k() ? job.weight->padded_k() : end;
      Block<kRows> sum;
      leaf<kRows>(job, tile, x, begin, begin == end ? end : padded_end, sum);
      for (level = 0; count >> level & 1; ++level) {
        levels[level] += sum;
        sum = levels[level];
      }
      levels[level] = sum;
      ++count;
      begin = end;
    }
    result = levels[level];  // a power of two of leaves: the last carry reached the root
  }
  const F f;
  const int64_t columns = HWY_MIN(kTileColumns, job.weight->n() - t * kTileColumns);
  for (int m = 0; m < kRows; ++m) {
    float* out = job.out + (first_row + m) * job.out_stride + t * kTileColumns;
    if (columns == kTileColumns) {
      for (int64_t i = 0; i < kVectors; ++i) hn::StoreU(result.sum[m][i], f, out + i * kLanes);
    } else {
      HWY_ALIGN float row[kTileColumns];
      for (int64_t i = 0; i < kVectors; ++i) hn::Store(result.sum[m][i], f, row + i * kLanes);
      for (int64_t c = 0; c < columns; ++c) out[c] = row[c];
    }
  }
}

void tiles(const MatmulJob& job, int64_t first_tile, int64_t last_tile) {
  constexpr int kBlockRows = kLanes >= 16 ? 8 : 4;
  for (int64_t t = first_tile; t < last_tile; ++t) {
    int64_t m = 0;
    for (; m + kBlockRows <= job.rows; m += kBlockRows) tile_rows<kBlockRows>(job, t, m);
    for (; m + 2 <= job.rows; m += 2) tile_rows<2>(job, t, m);
    for (; m < job.rows; ++m) tile_rows<1>(job, t, m);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace outrider
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace outrider {

HWY_EXPORT(tiles);

void matmul_tiles(const MatmulJob& job, int64_t first_tile, int64_t last_tile) {
  HWY_DYNAMIC_DISPATCH(tiles)(job, first_tile, last_tile);
}

}  // namespace outrider
#endif
