#include "kernels/sampling/row_kernels.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/short_weight.h"
#include "kernels/sampling/ordered_key.h"
#include "tests/kernels/sampling/reference.h"

namespace outrider {

#if defined(__x86_64__)
// The variants behind the run-time choice; see row_kernels.cpp.
namespace isa {
#define DECLARE(name, parameters) name##_baseline parameters, name##_avx2 parameters, name##_avx512 parameters
bool DECLARE(scale_and_scan, (std::span<float>, Chunks, float, std::span<float>));
void DECLARE(fill_keys, (std::span<const float>, std::span<uint32_t>));
void DECLARE(mask_below, (std::span<float>, float, int64_t));
void DECLARE(fill_weights, (std::span<const float>, float, std::span<uint64_t>));
uint64_t DECLARE(sum_weights, (std::span<const float>, float));
void DECLARE(fill_draft_weights, (std::span<const float>, float, std::span<uint32_t>));
uint64_t DECLARE(shorten_weights, (std::span<uint32_t>));
size_t DECLARE(count_at_least, (std::span<const uint32_t>, uint32_t));
void DECLARE(fill_run_maxima, (std::span<const uint32_t>, std::span<uint32_t>));
void DECLARE(fill_residual,
             (std::span<const uint64_t>, uint64_t, double, std::span<const double>, std::span<uint64_t>));
bool DECLARE(fill_noise_words, (Seed, Position, int64_t, uint32_t, NoiseWords&));
}  // namespace isa
#endif

namespace {

#if defined(__x86_64__)
// Everything a variant computes on one row, as one string of bytes.
struct Outputs {
  std::vector<float> scaled, chunk_max, masked;
  std::vector<uint32_t> keys, draft_weights, short_weights, run_maxima;
  std::vector<uint64_t> weights, residual;
  uint64_t sum = 0, short_sum = 0, reached_count = 0;
  NoiseWords words{};
  bool nan = false, reached = false;
  bool operator==(const Outputs& other) const {
    const auto same = [](const auto& a, const auto& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0;
    };
    return same(scaled, other.scaled) && same(chunk_max, other.chunk_max) && same(masked, other.masked) &&
           keys == other.keys && draft_weights == other.draft_weights && run_maxima == other.run_maxima &&
           reached_count == other.reached_count && short_weights == other.short_weights &&
           short_sum == other.short_sum && weights == other.weights && residual == other.residual &&
           sum == other.sum && words.word == other.words.word && nan == other.nan && reached == other.reached;
  }
};

#define RUN_VARIANT(isa_name)                                                                       \
  [&] {                                                                                             \
    Outputs out;                                                                                    \
    out.scaled = row;                                                                               \
    out.chunk_max.resize(static_cast<size_t>(chunks.count()));                                      \
    out.nan = isa::scale_and_scan_##isa_name(out.scaled, chunks, 1.3f, out.chunk_max);              \
    out.masked = row;                                                                               \
    isa::mask_below_##isa_name(out.masked, 1, static_cast<int64_t>(row.size() / 2));                \
    out.keys.resize(row.size());                                                                    \
    isa::fill_keys_##isa_name(row, out.keys);                                                       \
    out.draft_weights.resize(row.size());                                                           \
    isa::fill_draft_weights_##isa_name(row, max, out.draft_weights);                                \
    out.short_weights = out.draft_weights;                                                          \
    out.short_sum = isa::shorten_weights_##isa_name(out.short_weights);                             \
    out.reached_count = isa::count_at_least_##isa_name(out.draft_weights, out.draft_weights[0]);    \
    out.run_maxima.resize((row.size() + kRunTokens - 1) / kRunTokens);                              \
    isa::fill_run_maxima_##isa_name(out.draft_weights, out.run_maxima);                             \
    out.weights.resize(row.size());                                                                 \
    isa::fill_weights_##isa_name(row, max, out.weights);                                            \
    out.sum = isa::sum_weights_##isa_name(row, max);                                                \
    out.residual.resize(row.size());                                                                \
    isa::fill_residual_##isa_name(out.weights, out.sum, 0.9, q, out.residual);                      \
    out.reached = isa::fill_noise_words_##isa_name(Seed{7}, Position(5), 9, 0xF0000000, out.words); \
    return out;                                                                                     \
  }()

TEST(RowKernels, InstructionSetsAgreeBitForBit) {
  std::mt19937_64 rng(6);
  int compared = 0;
  for (int i = 0; i < 40; ++i) {
    auto row = reference::random_logits(rng, 1 + rng() % 500, 6, 1e6);
    if (i % 3 == 0) row[rng() % row.size()] = kMinusInfinity;
    row[rng() % row.size()] = -0.0f;
    const float max = *std::max_element(row.begin(), row.end());
    std::vector<double> q(row.size());
    for (double& value : q) value = static_cast<double>(rng() >> 11) * 0x1p-53 / 50;
    const Chunks chunks{{37, 37 + static_cast<int64_t>(row.size())}};
    const Outputs baseline = RUN_VARIANT(baseline);
    if (__builtin_cpu_supports("avx2")) {
      EXPECT_TRUE(RUN_VARIANT(avx2) == baseline);
      ++compared;
    }
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
      EXPECT_TRUE(RUN_VARIANT(avx512) == baseline);
      ++compared;
    }
  }
  if (compared == 0) GTEST_SKIP() << "this processor has neither AVX2 nor AVX-512: nothing to compare";
}
#endif

TEST(RowKernels, ShortWeightsAreRoundedOneByOne) {
  std::mt19937_64 rng(8);
  std::vector<uint32_t> weights{0,    1,    2047, 2048,     2049,           2050,
                                2051, 4094, 4095, 1u << 31, (1u << 31) - 1, 0xFFEu << 12};
  for (int i = 0; i < 20000; ++i) weights.push_back(static_cast<uint32_t>(rng() >> (33 + rng() % 31)));
  for (int bits = 12; bits <= 31; ++bits)  // ties, and what is one off them
    for (const int off : {-1, 0, 1})
      weights.push_back((1u << (bits - 1)) + (1u << (bits - 12)) * 3 + static_cast<uint32_t>(off));
  std::vector<uint32_t> expected = weights;
  uint64_t sum = 0;
  for (uint32_t& weight : expected) sum += weight = round_to_short_weight(weight);
  EXPECT_EQ(shorten_weights(weights), sum);
  EXPECT_EQ(weights, expected);
}

TEST(RowKernels, WeightsAreRoundedExponentials) {
  std::mt19937_64 rng(1);
  std::uniform_real_distribution<float> uniform(-45, 0);
  int exact = 0, checked = 0;
  for (int i = 0; i < 20000; ++i) {
    const float logit = i == 0 ? 0.0f : uniform(rng);
    const double expected = std::nearbyint(std::exp(static_cast<double>(logit)) * 0x1p44);
    const auto weight = static_cast<double>(weight_of(logit, 0));
    EXPECT_NEAR(weight, expected, 1)
        << logit;  // 1 ulp of exp is at most 2^-9 of a unit: only a tie can differ
    exact += weight == expected;
    ++checked;
  }
  EXPECT_GT(exact, checked * 0.999);
  EXPECT_EQ(weight_of(2.5f, 2.5f), uint64_t{1} << 44);
  EXPECT_EQ(weight_of(kMinusInfinity, 3), 0u);
  EXPECT_EQ(weight_of(-1e30f, 3), 0u);
}

// The bits of an element depend on neither its place in a vector nor the length of the slice.
TEST(RowKernels, EveryElementIsComputedAlike) {
  std::mt19937_64 rng(2);
  const auto row = reference::random_logits(rng, 101, 5, 1e6);
  std::vector<uint64_t> whole(row.size()), part(row.size());
  fill_weights(row, 9, whole);
  for (size_t begin = 0; begin < row.size(); ++begin) {
    const size_t n = row.size() - begin;
    fill_weights(std::span(row).subspan(begin), 9, std::span(part).first(n));
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(part[i], whole[begin + i]);
    uint64_t sum = 0;
    for (size_t i = begin; i < row.size(); ++i) sum += whole[i];
    ASSERT_EQ(sum_weights(std::span(row).subspan(begin), 9), sum);
  }
}

TEST(RowKernels, CountsAndMaximaOfAnyLength) {
  std::mt19937_64 rng(4);
  for (size_t size = 0; size < 300; ++size) {
    std::vector<uint32_t> weights(size);
    for (uint32_t& weight : weights) weight = static_cast<uint32_t>(rng() >> (32 + rng() % 32));
    for (const uint32_t least : {0u, 1u, size == 0 ? 7u : weights[size / 2], 0x80000000u, UINT32_MAX})
      ASSERT_EQ(count_at_least(weights, least),
                static_cast<size_t>(std::count_if(weights.begin(), weights.end(),
                                                  [least](uint32_t weight) { return weight >= least; })));
    std::vector<uint32_t> maxima((size + kRunTokens - 1) / kRunTokens), expected(maxima.size());
    for (size_t v = 0; v < size; ++v)
      expected[v / kRunTokens] = std::max(expected[v / kRunTokens], weights[v]);
    fill_run_maxima(weights, maxima);
    ASSERT_EQ(maxima, expected);
  }
}

TEST(RowKernels, DraftWeightsFit32Bits) {
  std::mt19937_64 rng(3);
  const auto row = reference::random_logits(rng, 77);
  const float max = *std::max_element(row.begin(), row.end());
  std::vector<uint32_t> weights(row.size());
  fill_draft_weights(row, max, weights);
  for (size_t v = 0; v < row.size(); ++v)
    EXPECT_NEAR(weights[v], std::exp(static_cast<double>(row[v]) - max) * 0x1p31, 0.51);
  EXPECT_EQ(*std::max_element(weights.begin(), weights.end()), uint32_t{1} << 31);
}

TEST(RowKernels, ScanFindsChunkMaximaAndNans) {
  std::mt19937_64 rng(4);
  for (int64_t begin : {0, 3, 63, 64, 100}) {
    for (int64_t size : {1, 5, 64, 65, 300}) {
      auto row = reference::random_logits(rng, static_cast<size_t>(size));
      const auto raw = row;
      const Chunks chunks{{begin, begin + size}};
      std::vector<float> chunk_max(static_cast<size_t>(chunks.count()));
      ASSERT_FALSE(scale_and_scan(row, chunks, 0.7f, chunk_max));
      int64_t seen = 0;
      for (int64_t c = 0; c < chunks.count(); ++c) {
        const IndexRange local = chunks.local(c);
        ASSERT_EQ(local.begin, seen);
        seen = local.end;
        float max = kMinusInfinity;
        for (int64_t i = local.begin; i < local.end; ++i) {
          EXPECT_EQ((begin + i) / kChunkTokens, chunks.first() + c);
          EXPECT_EQ(row[static_cast<size_t>(i)], raw[static_cast<size_t>(i)] * 0.7f);
          max = std::max(max, row[static_cast<size_t>(i)]);
        }
        EXPECT_EQ(chunk_max[static_cast<size_t>(c)], max);
      }
      EXPECT_EQ(seen, size);
      row[static_cast<size_t>(size / 2)] = std::nanf("");
      EXPECT_TRUE(scale_and_scan(row, chunks, 1.0f, chunk_max));
    }
  }
}

TEST(RowKernels, NoiseWordsAreTheDocumentedDraws) {
  NoiseWords words;
  for (int64_t chunk : {0, 1, 2003}) {
    fill_noise_words(Seed{0x123456789abcdef0}, Position(77), chunk, 0, words);
    for (int64_t token = chunk * 64; token < (chunk + 1) * 64; ++token) {
      const auto block = draw_block(Seed{0x123456789abcdef0}, Purpose::kGumbel, Position(77), Round(0),
                                    static_cast<uint32_t>(token >> 2));
      EXPECT_EQ(words.of(token), block[static_cast<size_t>(token & 3)]);
    }
  }
  uint32_t largest = 0;
  for (int64_t token = 2003 * 64; token < 2004 * 64; ++token) largest = std::max(largest, words.of(token));
  EXPECT_TRUE(fill_noise_words(Seed{0x123456789abcdef0}, Position(77), 2003, largest, words));
  EXPECT_FALSE(fill_noise_words(Seed{0x123456789abcdef0}, Position(77), 2003, largest + 1, words));
}

TEST(RowKernels, ResidualRoundsToNearest) {
  const std::vector<uint64_t> weights{0, 1, 3, uint64_t{1} << 44, 12345678901234};
  const uint64_t total = reference::sum(weights);
  const std::vector<double> q{0.5, 0, 1e-15, 0.25, 0.0};
  std::vector<uint64_t> residual(weights.size());
  fill_residual(weights, total, 0.75, q, residual);
  for (size_t v = 0; v < weights.size(); ++v) {
    const double p = static_cast<double>(weights[v]) / static_cast<double>(total);
    EXPECT_EQ(residual[v], static_cast<uint64_t>(std::llrint(std::max(0.0, 0.75 * p - q[v]) * 0x1p60)));
  }
}

TEST(RowKernels, MaskKeepsTiesUpToTheLastOne) {
  std::vector<float> row{1, 2, 3, 2, 1, 2};
  mask_below(row, 2, 4);
  EXPECT_EQ(row, (std::vector<float>{kMinusInfinity, 2, 3, 2, kMinusInfinity, kMinusInfinity}));
}

TEST(OrderedKey, KeepsTheOrderOfFloats) {
  std::mt19937_64 rng(5);
  std::uniform_int_distribution<uint32_t> any;
  for (int i = 0; i < 100000; ++i) {
    const auto a = std::bit_cast<float>(any(rng)), b = std::bit_cast<float>(any(rng));
    if (std::isnan(a) || std::isnan(b)) continue;
    EXPECT_EQ(a < b, ordered_key(a) < ordered_key(b));
    EXPECT_EQ(value_of_key(ordered_key(a)), a);
  }
  EXPECT_EQ(ordered_key(-0.0f), ordered_key(0.0f));
  EXPECT_EQ(ordered_key(std::nanf("")), 0xFFFFFFFF);
  EXPECT_EQ(ordered_key(-std::nanf("")), 0xFFFFFFFF);
  EXPECT_FALSE(RankedToken::of(std::nanf(""), 3).is_finite());
  EXPECT_FALSE(RankedToken::of(std::numeric_limits<float>::infinity(), 3).is_finite());
  EXPECT_FALSE(RankedToken::of(kMinusInfinity, 3).is_finite());
  EXPECT_FALSE(RankedToken().is_finite());
  EXPECT_TRUE(RankedToken::of(-3e38f, 3).is_finite());
  EXPECT_GT(RankedToken::of(1, 3), RankedToken::of(1, 4));
  EXPECT_EQ(RankedToken::of(1, 128255).id(), TokenId(128255));
}

}  // namespace
}  // namespace outrider
