// Measures how many int8 multiply-adds a second the instruction set in use can do from registers: the bound
// of a pass of many rows.
#pragma once

#include <cstdint>
#include <vector>

#include "base/statistics.h"
#include "base/thread_pool.h"
#include "kernels/cpu/isa.h"
#include "tests/bench/read_bandwidth.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace outrider::bench {

constexpr int64_t kProbeSteps = int64_t{1} << 20;
constexpr int kProbeSums = 12;  // independent, which hides the latency

#if defined(__x86_64__)
__attribute__((target("avx2"))) inline void multiply_bytes_avx2(int64_t steps) {
  __m256i sums[kProbeSums] = {}, x = _mm256_set1_epi8(3);
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (__m256i& sum : sums) {
      sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(x, x));
      asm volatile("" : "+x"(sum), "+x"(x));  // every product is computed
    }
  }
}

__attribute__((target("avx512f,avx512vnni"))) inline void multiply_bytes_vnni(int64_t steps) {
  __m512i sums[kProbeSums] = {}, x = _mm512_set1_epi32(0x03030303);
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (__m512i& sum : sums) {
      sum = _mm512_dpbusd_epi32(sum, x, x);
      asm volatile("" : "+v"(sum), "+v"(x));
    }
  }
}
#endif

// Median of `passes`; 0 where the instruction set has no such product.
inline double int8_multiply_adds_per_second(ThreadPool& pool, int passes = 5) {
#if defined(__x86_64__)
  const bool has_vnni = isa_has_avx512_vnni();
  if (!has_vnni && isa_name() != "avx2") return 0;
  std::vector<double> seconds;
  for (int i = 0; i < passes; ++i) {
    const double start = seconds_now();
    pool.parallel_for(pool.size(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j)
        has_vnni ? multiply_bytes_vnni(kProbeSteps) : multiply_bytes_avx2(kProbeSteps);
    });
    seconds.push_back(seconds_now() - start);
  }
  const double products = static_cast<double>(kProbeSteps * kProbeSums * (has_vnni ? 64 : 32) * pool.size());
  return products / median(std::move(seconds));
#else
  static_cast<void>(pool), static_cast<void>(passes);
  return 0;
#endif
}

}  // namespace outrider::bench
