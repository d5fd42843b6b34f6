// Philox4x32-10 (Salmon et al. 2011) and Gumbel noise, as functions that kernels share with the host.
// random.h draws by seed, purpose and position.
#pragma once

#include <bit>
#include <cstdint>

#include "base/shared_code.h"

namespace outrider {

// Counter in, block out.
OUTRIDER_SHARED_INLINE void philox(uint32_t& c0, uint32_t& c1, uint32_t& c2, uint32_t& c3, uint64_t key) {
  constexpr uint64_t kM0 = 0xD2511F53, kM1 = 0xCD9E8D57;
  constexpr uint32_t kW0 = 0x9E3779B9, kW1 = 0xBB67AE85;
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
#ifdef __CUDACC__
#pragma unroll
#else
#pragma GCC unroll 10
#endif
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kM0 * c0, product1 = kM1 * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(product0);
    k0 += kW0;
    k1 += kW1;
  }
}

// Natural logarithm of a positive normal number: x = 2^k m with m in [sqrt(1/2), sqrt(2)], and
// ln m = 2 atanh(s), s = (m - 1) / (m + 1), |s| <= 0.1716, by its series to s^23 (remainder below 2^-60).
// Within 2 ulp; the same bits on every machine.
OUTRIDER_SHARED_CODE inline double natural_log(double x) {
  constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;
  constexpr uint64_t kSqrtHalf = 0x3fe6a09e667f3bcd;  // as bits
  const auto bits = std::bit_cast<uint64_t>(x);
  const int64_t exponent = (static_cast<int64_t>(bits) - static_cast<int64_t>(kSqrtHalf)) >> 52;
  const double m = std::bit_cast<double>(bits - (static_cast<uint64_t>(exponent) << 52));
  const double s = (m - 1) / (m + 1), z = s * s;
  double series = 1.0 / 23;
  OUTRIDER_UNROLL
  for (int n = 21; n >= 3; n -= 2) series = series * z + 1.0 / n;
  const double tail = 2 * s * (z * series), k = static_cast<double>(exponent);
  return k * kLn2High + (2 * s + (tail + k * kLn2Low));
}

// In [0, 1): the upper 53 of 64 bits, the finest uniform grid of a double.
OUTRIDER_SHARED_CODE inline double unit_interval(uint64_t bits) {
  return static_cast<double>(static_cast<int64_t>(bits >> 11)) * 0x1p-53;
}

// -ln(-ln((word + 0.5) * 2^-32)).
OUTRIDER_SHARED_CODE inline double gumbel_of_word(uint32_t word) {
  return -natural_log(-natural_log((word + 0.5) * 0x1p-32));
}

// High 64 bits of a * b: maps 64 random bits onto [0, b).
OUTRIDER_SHARED_CODE inline uint64_t multiply_high(uint64_t a, uint64_t b) {
#ifdef __CUDA_ARCH__
  return __umul64hi(a, b);
#else
  __extension__ using uint128 = unsigned __int128;
  return static_cast<uint64_t>((static_cast<uint128>(a) * b) >> 64);
#endif
}

}  // namespace outrider
