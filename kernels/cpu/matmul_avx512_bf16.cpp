// bf16 weights with the AVX-512 dot product of bf16 pairs. Debian's Highway has no such operation, hence
// intrinsics. Worth it where the instruction is as fast as a multiply-add (AMD from Zen 4); Intel's runs at a
// quarter of that rate.
#include "base/log.h"
#include "kernels/cpu/matmul_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <utility>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

namespace outrider {
namespace {

constexpr int kAccumulators = 24;  // of 32 registers

constexpr int streams_of(int rows) {
  return rows * 4 <= kAccumulators ? 4 : rows * 2 <= kAccumulators ? 2 : 1;
}

constexpr int64_t kPrefetchBytes = 2048;

// The accumulators are a local array: through a reference they might alias the inputs and would live in
// memory.
template <int kRows, int kStreams>
TARGET void leaf(const LeafJob& job) {
  const uint32_t* x = job.inputs;
  __m512 sum[kStreams][kRows];
#pragma GCC unroll 4
  for (int s = 0; s < kStreams; ++s)
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) sum[s][m] = _mm512_setzero_ps();
  const std::byte* at = job.tile;
  for (int64_t k = 0; k < job.columns; k += 2, at += 64, x += kRows) {
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s) {
      const std::byte* w = at + s * job.stream_stride;
      _mm_prefetch(reinterpret_cast<const char*>(w) + kPrefetchBytes, _MM_HINT_T0);
      const __m512bh pairs = reinterpret_cast<__m512bh>(_mm512_load_si512(w));
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m)
        sum[s][m] = _mm512_dpbf16_ps(sum[s][m], pairs,
                                     reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(x[m]))));
    }
  }
#pragma GCC unroll 4
  for (int s = 0; s < kStreams; ++s)
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) _mm512_store_ps(job.sums + (s * kRows + m) * kTileColumns, sum[s][m]);
}

template <int... kRow>
KernelSet make_set(std::integer_sequence<int, kRow...>) {
  return {.layout = InputLayout::kPairs,
          .max_rows = kMaxBlockRows,
          .streams = {0, streams_of(kRow + 1)...},
          .many = {nullptr, leaf<kRow + 1, streams_of(kRow + 1)>...},
          .single = {nullptr, leaf<kRow + 1, 1>...}};
}

}  // namespace

const KernelSet& avx512_bf16_kernels() {
  static const KernelSet set = make_set(std::make_integer_sequence<int, kMaxBlockRows>());
  return set;
}

}  // namespace outrider

#else

namespace outrider {
const KernelSet& avx512_bf16_kernels() {
  CHECK(false, "no AVX512-BF16 on this processor");
  __builtin_unreachable();
}
}  // namespace outrider

#endif
