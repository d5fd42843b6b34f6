#include "kernels/sampling/row_kernels.h"

#include <bit>
#include <cstring>

#include "base/short_weight.h"
#include "kernels/sampling/ordered_key.h"
#include "kernels/sampling/token_math.h"

// One source for several instruction sets. Bodies are force-inlined into one wrapper per set. No wrapper
// fuses a multiplication with an addition, so all sets produce the same bits (tested through outrider::isa).
#define ALWAYS_INLINE inline __attribute__((always_inline))
#if defined(__x86_64__)
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#define AVX2 __attribute__((target("avx2")))
#define FOR_EACH_ISA(result, name, parameters, arguments)                  \
  namespace isa {                                                          \
  AVX512 result name##_avx512 parameters { return name##_body arguments; } \
  AVX2 result name##_avx2 parameters { return name##_body arguments; }     \
  result name##_baseline parameters { return name##_body arguments; }      \
  }                                                                        \
  result name parameters {                                                 \
    static const auto chosen = has_avx512() ? isa::name##_avx512           \
                               : has_avx2() ? isa::name##_avx2             \
                                            : isa::name##_baseline;        \
    return chosen arguments;                                               \
  }
#else
#define FOR_EACH_ISA(result, name, parameters, arguments) \
  result name parameters { return name##_body arguments; }
#endif

namespace outrider {
namespace {

#if defined(__x86_64__)
bool has_avx2() { return __builtin_cpu_supports("avx2"); }
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

using F32x16 = float __attribute__((vector_size(64)));
using I32x16 = int32_t __attribute__((vector_size(64)));
using F32x8 = float __attribute__((vector_size(32)));
using F64x8 = double __attribute__((vector_size(64)));
using U32x8 = uint32_t __attribute__((vector_size(32)));
using U64x8 = uint64_t __attribute__((vector_size(64)));

ALWAYS_INLINE void load(const float* from, F32x16& to) { std::memcpy(&to, from, sizeof to); }
ALWAYS_INLINE void load(const float* from, F32x8& to) { std::memcpy(&to, from, sizeof to); }

// Maximum of n <= 64 scaled elements; sets nan if there is one.
ALWAYS_INLINE float scale_chunk(float* x, int64_t n, float scale, bool& nan) {
  F32x16 best = F32x16{} + kMinusInfinity;
  I32x16 unordered{};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    F32x16 v;
    load(x + i, v);
    v *= scale;
    std::memcpy(x + i, &v, sizeof v);
    best = v > best ? v : best;
    unordered |= v != v;
  }
  float result = kMinusInfinity;
  int32_t any = 0;
  for (int j = 0; j < 16; ++j) {
    result = best[j] > result ? best[j] : result;
    any |= unordered[j];
  }
  for (; i < n; ++i) {
    const float v = x[i] * scale;
    x[i] = v;
    result = v > result ? v : result;
    any |= v != v;
  }
  nan |= any != 0;
  return result;
}

ALWAYS_INLINE bool scale_and_scan_body(std::span<float> row, Chunks chunks, float scale,
                                       std::span<float> chunk_max) {
  bool nan = false;
  const int64_t count = chunks.count();
  for (int64_t i = 0; i < count; ++i) {
    const IndexRange at = chunks.local(i);
    chunk_max[static_cast<size_t>(i)] = scale_chunk(row.data() + at.begin, at.size(), scale, nan);
  }
  return nan;
}

ALWAYS_INLINE void fill_keys_body(std::span<const float> row, std::span<uint32_t> keys) {
  for (size_t i = 0; i < row.size(); ++i) {
    const auto bits = std::bit_cast<uint32_t>(row[i] + 0.0f);
    keys[i] = bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000);
  }
}

ALWAYS_INLINE void mask_below_body(std::span<float> row, float cut, int64_t tie_end) {
  const auto ties = static_cast<size_t>(tie_end);
  for (size_t i = 0; i < ties; ++i) row[i] = row[i] >= cut ? row[i] : kMinusInfinity;
  for (size_t i = ties; i < row.size(); ++i) row[i] = row[i] > cut ? row[i] : kMinusInfinity;
}

// Calls use(i, weights, n) for every group of up to 8 elements.
template <class Use>
ALWAYS_INLINE void for_each_weights(std::span<const float> row, double max, int bits, Use use) {
  const int64_t n = static_cast<int64_t>(row.size());
  U64x8 weights;
  F32x8 logits;
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    load(row.data() + i, logits);
    exp_weights(__builtin_convertvector(logits, F64x8), max, bits, weights);
    use(i, weights, 8);
  }
  if (i == n) return;
  logits = F32x8{} + kMinusInfinity;
  std::memcpy(&logits, row.data() + i, static_cast<size_t>(n - i) * sizeof(float));
  exp_weights(__builtin_convertvector(logits, F64x8), max, bits, weights);
  use(i, weights, n - i);
}

ALWAYS_INLINE void fill_weights_body(std::span<const float> row, float max, std::span<uint64_t> weights) {
  uint64_t* out = weights.data();
  for_each_weights(
      row, max, kWeightBits, [out](int64_t i, const U64x8& w, int64_t n) __attribute__((always_inline)) {
        std::memcpy(out + i, &w, static_cast<size_t>(n) * sizeof(uint64_t));
      });
}

ALWAYS_INLINE uint64_t sum_weights_body(std::span<const float> row, float max) {
  U64x8 sum{};
  for_each_weights(
      row, max,
      kWeightBits, [&sum](int64_t, const U64x8& w, int64_t) __attribute__((always_inline)) { sum += w; });
  uint64_t total = 0;
  for (int j = 0; j < 8; ++j) total += sum[j];
  return total;
}

ALWAYS_INLINE void fill_draft_weights_body(std::span<const float> row, float max,
                                           std::span<uint32_t> weights) {
  uint32_t* out = weights.data();
  for_each_weights(
      row, max, kDraftWeightBits, [out](int64_t i, const U64x8& w, int64_t n) __attribute__((always_inline)) {
        for (int64_t j = 0; j < n; ++j) out[i + j] = static_cast<uint32_t>(w[j]);
      });
}

// As doubles, whose mantissas have 42 bits more than short weights: with an exponent of 2^52 an integer is
// one, and one becomes an integer, as in exp_weights.
ALWAYS_INLINE uint64_t shorten_weights_body(std::span<uint32_t> weights) {
  constexpr int kExtra = 52 - kShortWeightMantissa;
  U64x8 sum{};
  size_t i = 0;
  for (; i + 8 <= weights.size(); i += 8) {
    U32x8 few;
    std::memcpy(&few, weights.data() + i, sizeof few);
    U64x8 bits = __builtin_convertvector(few, U64x8) | std::bit_cast<uint64_t>(0x1p52);
    F64x8 numbers;
    std::memcpy(&numbers, &bits, sizeof numbers);
    numbers -= 0x1p52;
    std::memcpy(&bits, &numbers, sizeof bits);
    bits = (bits + (uint64_t{1} << (kExtra - 1))) >> kExtra << kExtra;
    std::memcpy(&numbers, &bits, sizeof numbers);
    numbers += 0x1p52;
    std::memcpy(&bits, &numbers, sizeof bits);
    bits &= (uint64_t{1} << 52) - 1;
    sum += bits;
    few = __builtin_convertvector(bits, U32x8);
    std::memcpy(weights.data() + i, &few, sizeof few);
  }
  uint64_t total = 0;
  for (int j = 0; j < 8; ++j) total += sum[j];
  for (; i < weights.size(); ++i) total += weights[i] = round_to_short_weight(weights[i]);
  return total;
}

ALWAYS_INLINE size_t count_at_least_body(std::span<const uint32_t> weights, uint32_t least) {
  uint32_t count = 0;
  for (const uint32_t weight : weights) count += weight >= least;
  return count;
}

ALWAYS_INLINE void fill_run_maxima_body(std::span<const uint32_t> weights, std::span<uint32_t> maxima) {
  const size_t whole = weights.size() / kRunTokens;
  for (size_t run = 0; run < whole; ++run) {
    uint32_t largest = 0;
    for (size_t j = 0; j < kRunTokens; ++j) largest = std::max(largest, weights[run * kRunTokens + j]);
    maxima[run] = largest;
  }
  if (whole == maxima.size()) return;
  const auto rest = weights.subspan(whole * kRunTokens);
  maxima[whole] = *std::max_element(rest.begin(), rest.end());
}

ALWAYS_INLINE void fill_residual_body(std::span<const uint64_t> weights, uint64_t total, double ratio,
                                      std::span<const double> q, std::span<uint64_t> residual) {
  const auto z = static_cast<double>(total);
  for (size_t i = 0; i < weights.size(); ++i) residual[i] = residual_weight(weights[i], z, ratio, q[i]);
}

// Philox4x32-10 of 16 consecutive counters; the same function as draw_block, 16 lanes at a time.
ALWAYS_INLINE bool fill_noise_words_body(Seed seed, Position position, int64_t chunk, uint32_t threshold,
                                         NoiseWords& words) {
  const auto first = static_cast<uint32_t>(chunk * 16);
  uint32_t largest = 0;
  for (uint32_t j = 0; j < 16; ++j) {
    uint32_t c0 = first + j, c1 = static_cast<uint32_t>(position.value()), c2 = 0;
    uint32_t c3 = static_cast<uint32_t>(Purpose::kGumbel) << 24;
    philox(c0, c1, c2, c3, seed.value);
    words.word[0][j] = c0;
    words.word[1][j] = c1;
    words.word[2][j] = c2;
    words.word[3][j] = c3;
    largest = std::max(largest, std::max(std::max(c0, c1), std::max(c2, c3)));
  }
  return largest >= threshold;
}

}  // namespace

FOR_EACH_ISA(bool, scale_and_scan,
             (std::span<float> row, Chunks chunks, float scale, std::span<float> chunk_max),
             (row, chunks, scale, chunk_max))
FOR_EACH_ISA(void, fill_keys, (std::span<const float> row, std::span<uint32_t> keys), (row, keys))
FOR_EACH_ISA(void, mask_below, (std::span<float> row, float cut, int64_t tie_end), (row, cut, tie_end))
FOR_EACH_ISA(void, fill_weights, (std::span<const float> row, float max, std::span<uint64_t> weights),
             (row, max, weights))
FOR_EACH_ISA(uint64_t, sum_weights, (std::span<const float> row, float max), (row, max))
FOR_EACH_ISA(void, fill_draft_weights, (std::span<const float> row, float max, std::span<uint32_t> weights),
             (row, max, weights))
FOR_EACH_ISA(uint64_t, shorten_weights, (std::span<uint32_t> weights), (weights))
FOR_EACH_ISA(size_t, count_at_least, (std::span<const uint32_t> weights, uint32_t least), (weights, least))
FOR_EACH_ISA(void, fill_run_maxima, (std::span<const uint32_t> weights, std::span<uint32_t> maxima),
             (weights, maxima))
FOR_EACH_ISA(void, fill_residual,
             (std::span<const uint64_t> weights, uint64_t total, double ratio, std::span<const double> q,
              std::span<uint64_t> residual),
             (weights, total, ratio, q, residual))
FOR_EACH_ISA(bool, fill_noise_words,
             (Seed seed, Position position, int64_t chunk, uint32_t threshold, NoiseWords& words),
             (seed, position, chunk, threshold, words))

uint64_t weight_of(float logit, float max) {
  uint64_t weight = 0;
  fill_weights(std::span(&logit, 1), max, std::span(&weight, 1));
  return weight;
}

int64_t find_first(std::span<const float> row, float value) {
  return std::find(row.begin(), row.end(), value) - row.begin();
}

}  // namespace outrider
