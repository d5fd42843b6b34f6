// Codes of published checkpoints times int8 inputs with the AVX-512 dot product of byte quadruples, in the
// arithmetic that matmul_codes_int8.cpp states: codes are unsigned, as the instruction wants one operand to
// be.
#include "base/log.h"
#include "kernels/cpu/matmul_kernels.h"

#if defined(__x86_64__)
// GCC 12 warns of the undefined operand inside its own intrinsics (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include <utility>

#include "kernels/cpu/code_groups_avx512.h"

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))

namespace outrider {
namespace {

// Sums of leaves stay in memory, where they are touched once a run, so that registers hold integers.
constexpr int streams_of(int rows) { return rows <= 4 ? 4 : rows <= 8 ? 2 : 1; }

constexpr int64_t kPrefetchBytes = 2048;
constexpr int64_t kLineBytes = 64;

TARGET inline __m512i broadcast(uint32_t word) { return _mm512_set1_epi32(static_cast<int>(word)); }

template <int kBits, int kRows>
TARGET inline void add_line(const std::byte* line, const uint32_t* x, __m512i (&acc)[kRows]) {
  _mm_prefetch(reinterpret_cast<const char*>(line) + kPrefetchBytes, _MM_HINT_T0);
  const __m512i w = _mm512_load_si512(line);
  if constexpr (kBits == 8) {
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

// The upper bits of quad kQuad, of a line that has those of every quad, where a code of 5 or 6 bits has them.
template <int kBits, int kQuad>
TARGET inline __m512i upper_bits(__m512i line) {
  constexpr int kShift = 4 - kQuad * (kBits - 4);
  const __m512i moved = kShift >= 0 ? _mm512_slli_epi32(line, kShift >= 0 ? kShift : 0)
                                    : _mm512_srli_epi32(line, kShift < 0 ? -kShift : 0);
  return _mm512_and_si512(moved, _mm512_set1_epi8(kBits == 5 ? 0x10 : 0x30));
}

// Two quads of codes of 5 or 6 bits: a line of their lower 4 bits, and the line of upper bits.
template <int kBits, int kQuad, int kRows>
TARGET inline void add_planes(const std::byte* line, __m512i upper, const uint32_t* x,
                              __m512i (&acc)[kRows]) {
  const __m512i w = _mm512_load_si512(line), mask = _mm512_set1_epi8(15);
  const __m512i first = _mm512_or_si512(_mm512_and_si512(w, mask), upper_bits<kBits, kQuad>(upper));
  const __m512i second =
      _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(w, 4), mask), upper_bits<kBits, kQuad + 1>(upper));
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) acc[m] = _mm512_dpbusd_epi32(acc[m], first, broadcast(x[m]));
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) acc[m] = _mm512_dpbusd_epi32(acc[m], second, broadcast(x[kRows + m]));
}

// Columns of a line, or of the lines of 5 or 6 bits that belong together.
template <int kBits>
constexpr int64_t kColumnsTogether = kBits == 5   ? 32
                                     : kBits == 6 ? 16
                                                  : 32 / kBits;
template <int kBits>
constexpr int64_t kBytesTogether = kColumnsTogether<kBits>* kTileColumns* kBits / 8;

template <int kBits, int kRows>
TARGET inline void add_lines(const std::byte* lines, const uint32_t* x, __m512i (&acc)[kRows]) {
  if constexpr (kBits == 4 || kBits == 8) {
    add_line<kBits, kRows>(lines, x, acc);
  } else {
    constexpr int64_t kLower = kBytesTogether<kBits> - kLineBytes;
#pragma GCC unroll 5
    for (int64_t at = 0; at <= kLower; at += kLineBytes)
      _mm_prefetch(reinterpret_cast<const char*>(lines) + at + kPrefetchBytes, _MM_HINT_T0);
    const __m512i upper = _mm512_load_si512(lines + kLower);
    add_planes<kBits, 0, kRows>(lines, upper, x, acc);
    add_planes<kBits, 2, kRows>(lines + kLineBytes, upper, x + 2 * kRows, acc);
    if constexpr (kBits == 5) {
      add_planes<kBits, 4, kRows>(lines + 2 * kLineBytes, upper, x + 4 * kRows, acc);
      add_planes<kBits, 6, kRows>(lines + 3 * kLineBytes, upper, x + 6 * kRows, acc);
    }
  }
}

// sums [kRows][16] += run `r` of one stream.
template <int kRows>
TARGET inline void add_run(const LeafJob& job, const std::byte* tile, int64_t r, const __m512i (&acc)[kRows],
                           float* sums) {
  const CodeLayout& c = *job.codes;
  const CodeLayout::Run& run = job.runs[r];
  const bool is_stored = c.scheme.zero_type == ZeroType::kStored,
             has_minima = c.scheme.zero_type == ZeroType::kMinimum;
  const __m512 scale = scales_of(c, tile, run);
  const __m512i zero = is_stored ? _mm512_cvtepu8_epi32(bytes_at(tile + c.zeros + run.group * kTileColumns))
                                 : _mm512_set1_epi32(has_minima ? 0 : c.scheme.zero);
  const __m512 minimum = has_minima ? minima_of(c, tile, run) : _mm512_setzero_ps();
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
    const int64_t at = r * kRows + m;
    __m512i a = acc[m];
    if (!has_minima)
      a = _mm512_sub_epi32(a, _mm512_mullo_epi32(zero, _mm512_set1_epi32(job.input_offsets[at])));
    const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(job.input_scales[at]));
    __m512 sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a), both, _mm512_load_ps(sums + m * kTileColumns));
    if (has_minima) sum = _mm512_fnmadd_ps(minimum, _mm512_set1_ps(job.input_sums[at]), sum);
    _mm512_store_ps(sums + m * kTileColumns, sum);
  }
}

template <int kBits, int kRows, int kStreams>
TARGET void leaf(const LeafJob& job) {
  constexpr int64_t kTogether = kColumnsTogether<kBits>;
  for (int i = 0; i < kStreams * kRows; ++i)
    _mm512_store_ps(job.sums + i * kTileColumns, _mm512_setzero_ps());
  const std::byte* at = job.tile;
  const uint32_t* x = job.inputs;
  for (int64_t r = 0; r < job.run_count; ++r) {
    __m512i acc[kStreams][kRows];
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s)
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m) acc[s][m] = _mm512_setzero_si512();
    const int64_t columns = job.runs[r].columns;
    for (int64_t k = 0; k < columns;
         k += kTogether, at += kBytesTogether<kBits>, x += kTogether / 4 * kRows) {
#pragma GCC unroll 4
      for (int s = 0; s < kStreams; ++s) add_lines<kBits, kRows>(at + s * job.stream_stride, x, acc[s]);
    }
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s)
      add_run<kRows>(job, job.scales + s * job.stream_stride, r, acc[s], job.sums + s * kRows * kTileColumns);
  }
}

template <int kBits, int... kRow>
KernelSet make_set(std::integer_sequence<int, kRow...>) {
  return {.layout = InputLayout::kBytes,
          .max_rows = kMaxBlockRows,
          .streams = {0, streams_of(kRow + 1)...},
          .many = {nullptr, leaf<kBits, kRow + 1, streams_of(kRow + 1)>...},
          .single = {nullptr, leaf<kBits, kRow + 1, 1>...}};
}

}  // namespace

const KernelSet& avx512_vnni_code_kernels(const CodeLayout& codes) {
  constexpr auto kRows = std::make_integer_sequence<int, kMaxBlockRows>();
  static const KernelSet four = make_set<4>(kRows), five = make_set<5>(kRows), six = make_set<6>(kRows),
                         eight = make_set<8>(kRows);
  return codes.bits == 4 ? four : codes.bits == 5 ? five : codes.bits == 6 ? six : eight;
}

}  // namespace outrider

#else

namespace outrider {
const KernelSet& avx512_vnni_code_kernels(const CodeLayout&) {
  CHECK(false, "no AVX-512 VNNI on this processor");
  __builtin_unreachable();
}
}  // namespace outrider

#endif
