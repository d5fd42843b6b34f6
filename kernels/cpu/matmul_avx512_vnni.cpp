// int8 and int4 weights with the AVX-512 dot product of byte quadruples: 64 exact multiplications an
// instruction. Weights are stored unsigned, as the instruction wants one operand to be; input_offsets take
// that back.
#include "base/log.h"
#include "kernels/cpu/matmul_kernels.h"

#if defined(__x86_64__)
// GCC 12 warns of the undefined operand inside its own intrinsics (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include <utility>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vnni")))

namespace outrider {
namespace {

// Every output has an integer and a float accumulator; the floats may spill, they are touched once a group.
constexpr int streams_of(int rows) { return rows <= 4 ? 4 : rows <= 8 ? 2 : 1; }

constexpr int64_t kPrefetchBytes = 2048;
constexpr int64_t kLineBytes = 64;  // a line holds 4 columns of int8, 8 of int4

TARGET inline __m512 load_scales(const std::byte* scales) {
  const __m256i halves = _mm256_load_si256(reinterpret_cast<const __m256i*>(scales));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

TARGET inline __m512i broadcast(uint32_t word) { return _mm512_set1_epi32(static_cast<int>(word)); }

// acc += the columns of one line.
template <WeightType kType, int kRows>
TARGET inline void add_line(const std::byte* line, const uint32_t* x, __m512i (&acc)[kRows]) {
  _mm_prefetch(reinterpret_cast<const char*>(line) + kPrefetchBytes, _MM_HINT_T0);
  const __m512i w = _mm512_load_si512(line);
  if constexpr (kType == WeightType::kInt8) {
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) acc[m] = _mm512_dpbusd_epi32(acc[m], w, broadcast(x[m]));
  } else {
    const __m512i mask = _mm512_set1_epi8(15);
    const __m512i low = _mm512_and_si512(w, mask);
    const __m512i high = _mm512_and_si512(_mm512_srli_epi16(w, 4), mask);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) acc[m] = _mm512_dpbusd_epi32(acc[m], low, broadcast(x[m]));
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) acc[m] = _mm512_dpbusd_epi32(acc[m], high, broadcast(x[kRows + m]));
  }
}

template <WeightType kType, int kRows, int kStreams>
TARGET void leaf(const LeafJob& job) {
  constexpr int64_t kLineColumns = kType == WeightType::kInt8 ? 4 : 8;
  constexpr int64_t kGroupLines = group_columns(kType) / kLineColumns;
  constexpr int64_t kLineWords = kRows * kLineColumns / 4;
  __m512 sum[kStreams][kRows];
#pragma GCC unroll 4
  for (int s = 0; s < kStreams; ++s)
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) sum[s][m] = _mm512_setzero_ps();
  const std::byte* at = job.tile;
  const uint32_t* x = job.inputs;
  int64_t left = job.columns / kLineColumns;
  for (int64_t g = 0; left > 0; ++g) {
    const int64_t lines = left < kGroupLines ? left : kGroupLines;
    left -= lines;
    __m512i acc[kStreams][kRows];
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s)
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m)
        acc[s][m] = broadcast(static_cast<uint32_t>(job.input_offsets[g * kRows + m]));
    for (int64_t i = 0; i < lines; ++i, at += kLineBytes, x += kLineWords) {
#pragma GCC unroll 4
      for (int s = 0; s < kStreams; ++s) add_line<kType, kRows>(at + s * job.stream_stride, x, acc[s]);
    }
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s) {
      const __m512 scales = load_scales(job.scales + s * job.stream_stride + g * 32);
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m) {
        const __m512 scale = _mm512_mul_ps(scales, _mm512_set1_ps(job.input_scales[g * kRows + m]));
        sum[s][m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[s][m]), scale, sum[s][m]);
      }
    }
  }
#pragma GCC unroll 4
  for (int s = 0; s < kStreams; ++s)
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) _mm512_store_ps(job.sums + (s * kRows + m) * kTileColumns, sum[s][m]);
}

template <WeightType kType, int... kRow>
KernelSet make_set(std::integer_sequence<int, kRow...>) {
  return {.layout = InputLayout::kBytes,
          .max_rows = kMaxBlockRows,
          .streams = {0, streams_of(kRow + 1)...},
          .many = {nullptr, leaf<kType, kRow + 1, streams_of(kRow + 1)>...},
          .single = {nullptr, leaf<kType, kRow + 1, 1>...}};
}

}  // namespace

const KernelSet& avx512_vnni_kernels(WeightType type) {
  constexpr auto kRows = std::make_integer_sequence<int, kMaxBlockRows>();
  static const KernelSet int8 = make_set<WeightType::kInt8>(kRows), int4 = make_set<WeightType::kInt4>(kRows);
  return type == WeightType::kInt8 ? int8 : int4;
}

}  // namespace outrider

#else

namespace outrider {
const KernelSet& avx512_vnni_kernels(WeightType) {
  CHECK(false, "no AVX-512 VNNI on this processor");
  __builtin_unreachable();
}
}  // namespace outrider

#endif
