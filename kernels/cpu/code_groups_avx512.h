// The numbers that groups of codes share, for the 16 outputs of a tile, with AVX-512: internal to the
// kernels.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/packed_matrix.h"

#define OUTRIDER_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))

namespace outrider {

OUTRIDER_AVX512 inline __m512 halves_at(const std::byte* at) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}
OUTRIDER_AVX512 inline __m128i bytes_at(const std::byte* at) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
}
OUTRIDER_AVX512 inline __m512 signed_bytes_at(const std::byte* at) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes_at(at)));
}

OUTRIDER_AVX512 inline __m512 scales_of(const CodeLayout& c, const std::byte* tile,
                                        const CodeLayout::Run& run) {
  const int64_t at = run.group * kTileColumns;
  switch (c.scheme.scale) {
    case ScaleType::kFloat32:
      return _mm512_loadu_ps(tile + c.scales + 4 * at);
    case ScaleType::kBFloat16: {
      const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tile + c.scales + 2 * at));
      return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
    }
    case ScaleType::kFloat16:
      return halves_at(tile + c.scales + 2 * at);
    case ScaleType::kPowerOfTwo: {
      const __m512i code = _mm512_cvtepu8_epi32(bytes_at(tile + c.scales + at));
      const __m512i power = _mm512_mask_mov_epi32(
          _mm512_slli_epi32(code, 23), _mm512_testn_epi32_mask(code, code), _mm512_set1_epi32(0x400000));
      return _mm512_castsi512_ps(_mm512_mask_mov_epi32(
          power, _mm512_cmpeq_epi32_mask(code, _mm512_set1_epi32(255)), _mm512_set1_epi32(0x7fc00000)));
    }
    case ScaleType::kNested:
      break;
  }
  return _mm512_mul_ps(halves_at(tile + c.outer_scales + 2 * run.outer * kTileColumns),
                       signed_bytes_at(tile + c.scales + at));
}

OUTRIDER_AVX512 inline __m512 minima_of(const CodeLayout& c, const std::byte* tile,
                                        const CodeLayout::Run& run) {
  if (c.scheme.scale != ScaleType::kNested) return halves_at(tile + c.minima + 2 * run.group * kTileColumns);
  return _mm512_mul_ps(halves_at(tile + c.outer_minima + 2 * run.outer * kTileColumns),
                       signed_bytes_at(tile + c.minima + run.group * kTileColumns));
}

OUTRIDER_AVX512 inline __m512 zeros_of(const CodeLayout& c, const std::byte* tile,
                                       const CodeLayout::Run& run) {
  const __m512i zero = _mm512_cvtepu8_epi32(bytes_at(tile + c.zeros + run.group * kTileColumns));
  return _mm512_cvtepi32_ps(_mm512_sub_epi32(zero, _mm512_set1_epi32(c.number_base())));
}

}  // namespace outrider
