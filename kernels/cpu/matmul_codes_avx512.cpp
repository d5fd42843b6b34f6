// Codes of published checkpoints with the AVX-512 dot product of bf16 pairs, in the arithmetic that
// matmul_codes.cpp states. A line of 64 bytes becomes pairs of bf16 once, for all rows: 4-bit codes through a
// table of 16, e4m3 by moving its bits, bytes through fp32.
#include "base/log.h"
#include "kernels/cpu/matmul_kernels.h"

#if defined(__x86_64__)
// GCC 12 warns of the undefined operand inside its own intrinsics (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include <utility>

#include "kernels/cpu/code_groups_avx512.h"

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))

namespace outrider {
namespace {

enum class Expansion : uint8_t { kTable, kBytes, kE4m3 };

// Groups are added in memory, once a run, so that registers are left to their own sums.
constexpr int streams_of(int rows) { return rows <= 4 ? 4 : rows <= 8 ? 2 : 1; }

constexpr int64_t kPrefetchBytes = 2048, kPrefetchScales = 256;
constexpr int64_t kLineBytes = 64;

template <int kRows>
TARGET inline void add_pairs(__m512i pairs, const uint32_t* x, __m512 (&acc)[kRows]) {
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m)
    acc[m] = _mm512_dpbf16_ps(acc[m], reinterpret_cast<__m512bh>(pairs),
                              reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(x[m]))));
}

// `constants`: the table of 4-bit codes; what is taken from bytes; the subnormal numbers of e4m3.
template <Expansion kExpansion>
TARGET inline __m512i constants_of(const CodeLayout& c) {
  if constexpr (kExpansion == Expansion::kTable) return _mm512_load_si512(c.numbers.data());
  if constexpr (kExpansion == Expansion::kBytes) return _mm512_set1_epi32(c.number_base());
  // Whole multiples of 2^-9 as bf16, four times.
  return _mm512_set4_epi32(0x3c603c40, 0x3c203c00, 0x3bc03b80, 0x3b000000);
}

TARGET inline __m512i pairs_of_bytes(const std::byte* at, __m512i base) {
  const __m512 low = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_cvtepu8_epi32(bytes_at(at)), base));
  const __m512 high = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_cvtepu8_epi32(bytes_at(at + 16)), base));
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

// Sign, exponent and mantissa go where bf16 has them, the exponent less the difference of the biases; codes
// with an exponent of zero are looked up.
TARGET inline __m512i pairs_of_e4m3(const std::byte* at, __m512i subnormals) {
  const __m512i code = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  const __m512i moved = _mm512_and_si512(_mm512_slli_epi16(code, 4), _mm512_set1_epi16(0x07f0));
  const __m512i normal = _mm512_add_epi16(moved, _mm512_set1_epi16(120 << 7));
  const __mmask32 is_small = _mm512_testn_epi16_mask(code, _mm512_set1_epi16(0x78));
  const __m512i magnitude = _mm512_mask_permutexvar_epi16(normal, is_small, code, subnormals);
  constexpr int kSelect = 0xca;  // bits of the first choose between the second and the third
  return _mm512_ternarylogic_epi32(_mm512_set1_epi32(static_cast<int>(0x80008000u)), code, magnitude,
                                   kSelect);
}

template <Expansion kExpansion, int kRows>
TARGET inline void add_line(const std::byte* line, const uint32_t* x, __m512i constants,
                            __m512 (&acc)[kRows]) {
  _mm_prefetch(reinterpret_cast<const char*>(line) + kPrefetchBytes, _MM_HINT_T0);
  if constexpr (kExpansion == Expansion::kTable) {
    // The lookup takes the lowest five bits of a half; the fifth belongs to the next code, and the table
    // is there twice.
    const __m512i w = _mm512_load_si512(line);
    add_pairs<kRows>(_mm512_permutexvar_epi16(w, constants), x, acc);
    add_pairs<kRows>(_mm512_permutexvar_epi16(_mm512_srli_epi32(w, 4), constants), x + kRows, acc);
    add_pairs<kRows>(_mm512_permutexvar_epi16(_mm512_srli_epi32(w, 8), constants), x + 2 * kRows, acc);
    add_pairs<kRows>(_mm512_permutexvar_epi16(_mm512_srli_epi32(w, 12), constants), x + 3 * kRows, acc);
  } else {
    constexpr auto kPairs = kExpansion == Expansion::kBytes ? pairs_of_bytes : pairs_of_e4m3;
    add_pairs<kRows>(kPairs(line, constants), x, acc);
    add_pairs<kRows>(kPairs(line + kLineBytes / 2, constants), x + kRows, acc);
  }
}

// sums [kRows][16] += the columns of a run, of one stream.
template <int kRows>
TARGET inline void add_run(const CodeLayout& c, const std::byte* tile, const CodeLayout::Run& run,
                           const float* input_sums, const __m512 (&acc)[kRows], float* sums) {
  _mm_prefetch(
      reinterpret_cast<const char*>(tile) + c.scales + 2 * run.group * kTileColumns + kPrefetchScales,
      _MM_HINT_T0);
  const bool is_stored = c.scheme.zero_type == ZeroType::kStored,
             has_minima = c.scheme.zero_type == ZeroType::kMinimum;
  const __m512 scales = scales_of(c, tile, run);
  const __m512 shift = is_stored    ? zeros_of(c, tile, run)
                       : has_minima ? minima_of(c, tile, run)
                                    : _mm512_setzero_ps();
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
    __m512 a = acc[m];
    if (is_stored) a = _mm512_fnmadd_ps(shift, _mm512_set1_ps(input_sums[m]), a);
    __m512 sum = _mm512_fmadd_ps(a, scales, _mm512_load_ps(sums + m * kTileColumns));
    if (has_minima) sum = _mm512_fnmadd_ps(shift, _mm512_set1_ps(input_sums[m]), sum);
    _mm512_store_ps(sums + m * kTileColumns, sum);
  }
}

template <Expansion kExpansion, int kRows, int kStreams>
TARGET void leaf(const LeafJob& job) {
  constexpr int64_t kLineColumns = kExpansion == Expansion::kTable ? 8 : 4;
  const CodeLayout& c = *job.codes;
  const __m512i constants = constants_of<kExpansion>(c);
  for (int i = 0; i < kStreams * kRows; ++i)
    _mm512_store_ps(job.sums + i * kTileColumns, _mm512_setzero_ps());
  const std::byte* at = job.tile;
  const uint32_t* x = job.inputs;
  for (int64_t r = 0; r < job.run_count; ++r) {
    const CodeLayout::Run& run = job.runs[r];
    __m512 acc[kStreams][kRows];
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s)
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m) acc[s][m] = _mm512_setzero_ps();
    for (int64_t k = 0; k < run.columns; k += kLineColumns, at += kLineBytes, x += kLineColumns / 2 * kRows) {
#pragma GCC unroll 4
      for (int s = 0; s < kStreams; ++s)
        add_line<kExpansion, kRows>(at + s * job.stream_stride, x, constants, acc[s]);
    }
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s)
      add_run<kRows>(c, job.scales + s * job.stream_stride, run, job.input_scales + r * kRows, acc[s],
                     job.sums + s * kRows * kTileColumns);
  }
}

template <Expansion kExpansion, int... kRow>
KernelSet make_set(std::integer_sequence<int, kRow...>) {
  return {.layout = InputLayout::kPairs,
          .max_rows = kMaxBlockRows,
          .streams = {0, streams_of(kRow + 1)...},
          .many = {nullptr, leaf<kExpansion, kRow + 1, streams_of(kRow + 1)>...},
          .single = {nullptr, leaf<kExpansion, kRow + 1, 1>...}};
}

}  // namespace

const KernelSet& avx512_bf16_code_kernels(const QuantScheme& scheme) {
  constexpr auto kRows = std::make_integer_sequence<int, kMaxBlockRows>();
  static const KernelSet table = make_set<Expansion::kTable>(kRows),
                         bytes = make_set<Expansion::kBytes>(kRows), e4m3 = make_set<Expansion::kE4m3>(kRows);
  return code_bits(scheme.code) == 4 ? table : scheme.code == CodeType::kE4m3 ? e4m3 : bytes;
}

}  // namespace outrider

#else

namespace outrider {
const KernelSet& avx512_bf16_code_kernels(const QuantScheme&) {
  CHECK(false, "no AVX512-BF16 on this processor");
  __builtin_unreachable();
}
}  // namespace outrider

#endif
