#include "kernels/sampling/compact_row.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "comm/codec.h"
#include "comm/q_rows.h"
#include "kernels/sampling/compact_units.h"
#include "kernels/sampling/draft_sampler.h"
#include "tests/kernels/sampling/reference.h"

namespace outrider {
namespace {

QRow row_of(const std::vector<float>& logits, int64_t row_bytes) {
  QRow row;
  std::vector<uint32_t> scratch;
  make_integer_weights(logits, *std::max_element(logits.begin(), logits.end()), row_bytes, row, scratch);
  return row;
}

// The definition: one sort, and the code lengths of every unit from the units themselves.
QRow plain_compact_row(int64_t row_bytes, const std::vector<uint32_t>& weights) {
  const uint64_t vocab_size = weights.size();
  std::vector<uint32_t> best;
  for (uint32_t v = 0; v < vocab_size; ++v)
    if (weights[v] > 0) best.push_back(v);
  const bool has_rest = 2 * best.size() > vocab_size;
  std::stable_sort(best.begin(), best.end(), [&](uint32_t a, uint32_t b) { return weights[a] > weights[b]; });
  const CompactBudget budget = compact_budget(row_bytes, vocab_size);
  best.resize(std::min<size_t>(best.size(), budget.entries));
  std::sort(best.begin(), best.end());

  const auto listed_with = [&](uint32_t unit) {
    QRow row;
    for (const uint32_t v : best) {
      if (units_of(weights[v], unit) == 0) continue;
      row.ids.push_back(v);
      row.weights.push_back(units_of(weights[v], unit));
    }
    return row;
  };
  const auto bits_with = [&](uint32_t unit) {
    const QRow row = listed_with(unit);
    const int k = gap_parameter(has_rest ? vocab_size : row.ids.back() + uint64_t{1}, row.ids.size());
    int64_t bits = 8 * varint_bytes(row.ids.size());
    for (size_t i = 0; i < row.ids.size(); ++i)
      bits += rice_bits(i == 0 ? row.ids[0] : row.ids[i] - row.ids[i - 1] - 1, k) +
              elias_gamma_bits(row.weights[i]);
    return bits;
  };
  int fits = kUnits, too_fine = -1;
  while (fits - too_fine > 1) {
    const int middle = too_fine + (fits - too_fine) / 2;
    (bits_with(unit_at(middle)) <= budget.bits ? fits : too_fine) = middle;
  }

  QRow row = listed_with(unit_at(fits));
  if (has_rest) {
    uint64_t mass = 0, total = 0;
    for (const uint32_t v : row.ids) mass += weights[v];
    for (const uint32_t weight : weights) total += weight;
    const uint32_t per_unit =
        weight_of_unit(mass, total, sum_of(row), *std::max_element(row.weights.begin(), row.weights.end()),
                       vocab_size - row.ids.size());
    for (uint32_t& weight : row.weights) weight *= per_unit;
    row.rest = 1;
    row.id_end = static_cast<uint32_t>(vocab_size);
  }
  row.sum = sum_of(row);
  return row;
}

size_t wire_bytes(const QRow& row) {
  Draft without, with;
  with.q.push_back(row);
  return encode(with, {}).value().size() - encode(without, {}).value().size();
}

// Half the sum of |a - b|: what drawing from the one in place of the other can cost in acceptance.
double total_variation(const QRow& a, const QRow& b, size_t vocab_size) {
  double distance = 0;
  for (int32_t v = 0; v < static_cast<int32_t>(vocab_size); ++v)
    distance += std::abs(static_cast<double>(weight_in(a, TokenId(v))) / static_cast<double>(a.sum) -
                         static_cast<double>(weight_in(b, TokenId(v))) / static_cast<double>(b.sum));
  return distance / 2;
}

TEST(CompactRow, FitsItsBytesAndListsTheBestTokens) {
  std::mt19937_64 rng(2);
  for (const size_t vocab_size : {7, 100, 4096, 32'000})
    for (const float spread : {0.1f, 1.0f, 3.0f, 9.0f}) {
      const auto logits = reference::random_logits(rng, vocab_size, spread, 4);
      const QRow dense = row_of(logits, 0);
      for (const int64_t budget : {16, 24, 82, 640, 5000}) {
        const QRow row = row_of(logits, budget);
        ASSERT_TRUE(is_sparse_row(row));
        EXPECT_EQ(row.sum, sum_of(row));
        EXPECT_EQ(row.id_end, spread < 9 ? vocab_size : row.id_end);  // wide: most weights are 0
        EXPECT_LE(wire_bytes(row), static_cast<size_t>(budget)) << vocab_size;
        uint32_t least = UINT32_MAX, most_left_out = 0;
        for (size_t v = 0; v < vocab_size; ++v) {
          const bool listed = std::binary_search(row.ids.begin(), row.ids.end(), static_cast<uint32_t>(v));
          if (listed)
            least = std::min(least, dense.weights[v]);
          else
            most_left_out = std::max(most_left_out, dense.weights[v]);
        }
        EXPECT_GE(least, most_left_out);
      }
    }
}

// A row of weights up to 2^31, with the largest weight at a random place.
using MakeWeight = uint32_t (*)(std::mt19937_64&);
std::vector<uint32_t> random_weights(std::mt19937_64& rng, size_t vocab_size, MakeWeight make) {
  std::vector<uint32_t> weights(vocab_size);
  std::generate(weights.begin(), weights.end(), [&] { return make(rng); });
  weights[rng() % vocab_size] = uint32_t{1} << 31;
  return weights;
}

TEST(CompactRow, IsTheDefinitionsBitForBit) {
  const MakeWeight kinds[] = {
      [](std::mt19937_64&) { return uint32_t{1} << 31; },                               // flat
      [](std::mt19937_64&) { return 12345u; },                                          // one peak
      [](std::mt19937_64&) { return 0u; },                                              // all removed
      [](std::mt19937_64& r) { return static_cast<uint32_t>(r() >> 33); },              // no tail
      [](std::mt19937_64& r) { return static_cast<uint32_t>(r() >> 33 >> r() % 31); },  // a long tail
      // mostly zeros
      [](std::mt19937_64& r) { return r() % 8 ? 0u : static_cast<uint32_t>(r() >> 33 >> r() % 31); },
      [](std::mt19937_64& r) { return static_cast<uint32_t>(r() % 4); },        // ties, with neighbours
      [](std::mt19937_64& r) { return static_cast<uint32_t>(r() % 3 << 20); },  // ties
      [](std::mt19937_64& r) { return r() % 9 ? 1u : static_cast<uint32_t>(r() % 5 << 13); }  // and a tail
  };
  std::mt19937_64 rng(5);
  std::vector<uint32_t> scratch;
  for (const auto& [vocab_size, turns] :
       {std::pair{1, 2}, {2, 4}, {17, 40}, {1000, 5}, {4096, 5}, {128256, 1}})
    for (const MakeWeight make : kinds)
      for (int turn = 0; turn < turns; ++turn) {
        const auto weights = random_weights(rng, static_cast<size_t>(vocab_size), make);
        for (const int64_t row_bytes : {12, 20, 82, 300, 1024, 2565, 4096}) {
          const QRow expected = plain_compact_row(row_bytes, weights);
          QRow row{.weights = weights};
          compact_row(row_bytes, row, scratch);
          ASSERT_EQ(row.ids, expected.ids) << vocab_size << " in " << row_bytes;
          ASSERT_EQ(row.weights, expected.weights) << vocab_size << " in " << row_bytes;
          ASSERT_EQ(row.sum, expected.sum);
          ASSERT_EQ(row.rest, expected.rest);
          ASSERT_EQ(row.id_end, expected.id_end);
        }
      }
}

// Distributions like a language model's: the r-th best token has a share of about 1 / r^1.3.
TEST(CompactRow, IsCloseToTheRowAndCloserWithMoreBytes) {
  std::mt19937_64 rng(3);
  constexpr size_t kVocab = 4096;
  std::vector<size_t> ids(kVocab);
  std::iota(ids.begin(), ids.end(), size_t{0});
  std::shuffle(ids.begin(), ids.end(), rng);
  std::vector<float> logits(kVocab);
  for (size_t r = 0; r < kVocab; ++r) logits[ids[r]] = -1.3f * std::log(static_cast<float>(r + 1));
  const QRow dense = row_of(logits, 0);
  double last = 1;
  for (const auto& [budget, bound] :
       {std::pair{16, 0.5}, {40, 0.25}, {82, 0.17}, {320, 0.07}, {4096, 2e-3}}) {
    const double distance = total_variation(dense, row_of(logits, budget), kVocab);
    EXPECT_LT(distance, bound) << budget;
    EXPECT_LT(distance, last) << budget;
    last = distance;
  }
  // Where all are alike, so are those that are not listed.
  const std::vector<float> flat(kVocab, 1.5f);
  EXPECT_LT(total_variation(row_of(flat, 0), row_of(flat, 82), kVocab), 0.04);
}

// Filters leave a few tokens, and nothing may be drawn beyond them.
TEST(CompactRow, TokensThatFiltersRemovedGetNothing) {
  std::mt19937_64 rng(4);
  for (const size_t kept : {1, 3, 300, 900}) {
    auto logits = reference::random_logits(rng, 2000, 2, 4);
    for (size_t v = 0; v < logits.size(); ++v)
      if (v * 7 % 2000 >= kept) logits[v] = reference::kMasked;
    const QRow dense = row_of(logits, 0), row = row_of(logits, 82);
    EXPECT_EQ(row.rest, 0u);
    EXPECT_LE(row.ids.size(), kept);
    EXPECT_LE(wire_bytes(row), 82u);
    for (size_t i = 0; i < row.ids.size(); ++i) EXPECT_GT(dense.weights[row.ids[i]], 0u);
    if (kept <= 3) {
      EXPECT_LT(total_variation(dense, row, logits.size()), 1e-3);
    }
  }
}

// Too little for anything: the best token alone.
TEST(CompactRow, AlwaysHasAToken) {
  const QRow row = row_of({1, 2, 9, 3}, 1);
  EXPECT_EQ(row.ids, std::vector<uint32_t>{2});
  EXPECT_GT(row.weights[0], 0u);
}

}  // namespace
}  // namespace outrider
