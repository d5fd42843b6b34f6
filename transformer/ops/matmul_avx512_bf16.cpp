// bf16 weights with the AVX512-BF16 dot product: one instruction multiplies 32 pairs. Debian's Highway has no
// such operation, hence intrinsics with their own run-time check. Same contract as matmul_cpu.cpp: one
// accumulator per output, k in order.
#include "transformer/ops/matmul_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

namespace outrider {
namespace {

template <int kRows>
struct Block {
  __m512 sum[kRows][2];

  TARGET Block& operator+=(const Block& later) {
    for (int m = 0; m < kRows; ++m)
      for (int i = 0; i < 2; ++i) sum[m][i] = _mm512_add_ps(sum[m][i], later.sum[m][i]);
    return *this;
  }
};

constexpr int64_t kPrefetchBytes = 4096;

// The accumulators are a local array: through a reference they might alias the inputs and would live in
// memory.
template <int kRows>
TARGET inline Block<kRows> leaf(const uint32_t* tile, const uint32_t* x, int64_t stride, int64_t begin,
                                int64_t end) {
  __m512 sum[kRows][2];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) sum[m][0] = sum[m][1] = _mm512_setzero_ps();
  for (int64_t k = begin / 2; k < (end + 1) / 2; ++k) {
    const uint32_t* weights = tile + k * kTileColumns;
    _mm_prefetch(reinterpret_cast<const char*>(weights) + kPrefetchBytes, _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(weights) + kPrefetchBytes + 64, _MM_HINT_T0);
    const __m512bh w0 = reinterpret_cast<__m512bh>(_mm512_load_si512(weights));
    const __m512bh w1 = reinterpret_cast<__m512bh>(_mm512_load_si512(weights + 16));
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const __m512bh pair =
          reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(x[m * stride + k])));
      sum[m][0] = _mm512_dpbf16_ps(sum[m][0], w0, pair);
      sum[m][1] = _mm512_dpbf16_ps(sum[m][1], w1, pair);
    }
  }
  Block<kRows> block;
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    block.sum[m][0] = sum[m][0];
    block.sum[m][1] = sum[m][1];
  }
  return block;
}

template <int kRows>
TARGET void tile_rows(const MatmulJob& job, int64_t t, int64_t first_row) {
  const auto* tile = reinterpret_cast<const uint32_t*>(job.weight->tile(t));
  const uint32_t* x = job.inputs + first_row * job.input_stride;
  const auto& ends = job.weight->leaf_ends();
  Block<kRows> result;
  if (ends.size() == 1) {
    result = leaf<kRows>(tile, x, job.input_stride, 0, ends[0]);
  } else {
    Block<kRows> levels[kTreeLevels] = {};
    int count = 0, level = 0;
    int64_t begin = 0;
    for (int64_t end : ends) {
      Block<kRows> sum = leaf<kRows>(tile, x, job.input_stride, begin, end);
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
  const int64_t columns = job.weight->n() - t * kTileColumns;
  const auto mask0 = static_cast<__mmask16>(columns >= 16 ? 0xffff : (1 << columns) - 1);
  const auto mask1 = static_cast<__mmask16>(columns >= 32   ? 0xffff
                                            : columns <= 16 ? 0
                                                            : (1 << (columns - 16)) - 1);
  for (int m = 0; m < kRows; ++m) {
    float* out = job.out + (first_row + m) * job.out_stride + t * kTileColumns;
    _mm512_mask_storeu_ps(out, mask0, result.sum[m][0]);
    _mm512_mask_storeu_ps(out + 16, mask1, result.sum[m][1]);
  }
}

// Up to eight rows share one pass over a tile; more would not fit the registers.
TARGET void rows_of(const MatmulJob& job, int64_t t, int64_t first, int64_t count) {
  switch (count) {
    case 1:
      return tile_rows<1>(job, t, first);
    case 2:
      return tile_rows<2>(job, t, first);
    case 3:
      return tile_rows<3>(job, t, first);
    case 4:
      return tile_rows<4>(job, t, first);
    case 5:
      return tile_rows<5>(job, t, first);
    case 6:
      return tile_rows<6>(job, t, first);
    case 7:
      return tile_rows<7>(job, t, first);
    default:
      return tile_rows<8>(job, t, first);
  }
}

}  // namespace

bool cpu_has_avx512_bf16() {
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl");
}

void matmul_tiles_avx512_bf16(const MatmulJob& job, int64_t first_tile, int64_t last_tile) {
  for (int64_t t = first_tile; t < last_tile; ++t)
    for (int64_t m = 0; m < job.rows; m += 8) rows_of(job, t, m, job.rows - m < 8 ? job.rows - m : 8);
}

}  // namespace outrider

#else

namespace outrider {
bool cpu_has_avx512_bf16() { return false; }
void matmul_tiles_avx512_bf16(const MatmulJob&, int64_t, int64_t) {
  CHECK(false, "no AVX512-BF16 on this processor");
}
}  // namespace outrider

#endif
