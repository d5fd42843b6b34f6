#include "kernels/sampling/compact_row.h"

#include <algorithm>
#include <numeric>

#include "base/log.h"
#include "base/q_row.h"
#include "kernels/sampling/compact_units.h"
#include "kernels/sampling/row_kernels.h"

namespace outrider {
namespace {

constexpr uint32_t kLargestWeight = uint32_t{1} << 31;

// A weight that at least m of `weights` reach, and as few more as possible; 1 if fewer than m are above 0.
uint32_t reached_by(size_t m, std::span<const uint32_t> weights) {
  uint32_t least = 1, too_much = kLargestWeight + 1;
  while (too_much - least > 1) {
    const uint32_t middle = least + (too_much - least) / 2;
    const size_t count = count_at_least(weights, middle);
    if (count == m) return middle;
    (count > m ? least : too_much) = middle;
  }
  return least;
}

// Keeps the tokens whose weight is at least `least`. No branch depends on a weight: half of the branches
// would be mispredicted.
void keep_at_least(uint32_t least, QRow& row) {
  size_t kept = 0;
  for (size_t i = 0; i < row.ids.size(); ++i) {
    const uint32_t weight = row.weights[i];
    row.ids[kept] = row.ids[i];
    row.weights[kept] = weight;
    kept += weight >= least;
  }
  row.ids.resize(kept);
  row.weights.resize(kept);
}

// Keeps the weights of at least `least` of a dense row, which becomes a sparse one. `maxima`: of its runs.
void gather_at_least(uint32_t least, std::span<const uint32_t> maxima, QRow& row) {
  size_t kept = 0;
  row.ids.resize(count_at_least(row.weights, least) + 1);  // one for the tokens after the last that is kept
  for (size_t run = 0; run < maxima.size(); ++run) {
    if (maxima[run] < least) continue;
    const size_t end = std::min((run + 1) * kRunTokens, row.weights.size());
    for (size_t v = run * kRunTokens; v < end; ++v) {
      const uint32_t weight = row.weights[v];
      row.ids[kept] = static_cast<uint32_t>(v);
      row.weights[kept] = weight;
      kept += weight >= least;
    }
  }
  row.ids.resize(kept);
  row.weights.resize(kept);
}

// The best m of a dense row's tokens that have any weight, by (weight desc, id asc), in the order of their
// ids.
void keep_best(size_t m, QRow& row, std::vector<uint32_t>& maxima) {
  maxima.resize((row.weights.size() + kRunTokens - 1) / kRunTokens);
  fill_run_maxima(row.weights, maxima);
  // If the maxima of m runs reach a weight, at least m tokens do, and hardly more in a large vocabulary.
  gather_at_least(reached_by(m, maxima.size() > m ? maxima : row.weights), maxima, row);
  if (row.ids.size() <= m) return;
  const uint32_t least = reached_by(m, row.weights);
  keep_at_least(least, row);
  for (size_t i = row.ids.size(), too_many = i - m; too_many > 0;)
    if (row.weights[--i] == least) row.weights[i] = 0, --too_many;
  keep_at_least(1, row);
}

// Whether the row on the wire, but for the fields in front, fits when tokens of less than half a unit are
// left out. `id_end`: 0 if it is one more than the last id that is listed.
bool fits(int64_t budget_bits, const QRow& best, uint32_t unit, uint64_t id_end,
          std::vector<uint32_t>& listed) {
  const uint32_t least = least_listed(unit);
  const size_t count = count_at_least(best.weights, least);
  size_t last = best.ids.size() - 1;
  while (best.weights[last] < least) --last;
  const int k = gap_parameter(id_end > 0 ? id_end : best.ids[last] + uint64_t{1}, count);
  // All but gaps >> k. Elias' codes without a division: 1 bit, and 2 more for each j > 0 with 2^j units.
  int64_t bits = 8 * varint_bytes(count) + static_cast<int64_t>(count) * (k + 2);
  for (uint64_t units = 2; bits <= budget_bits && units * unit - unit / 2 <= kLargestWeight; units *= 2)
    bits += 2 * static_cast<int64_t>(
                    count_at_least(best.weights, static_cast<uint32_t>(units * unit - unit / 2)));

  // Each gap >> k is more than gap / 2^k - 1, so that their sum often tells.
  const auto gaps = static_cast<int64_t>(best.ids[last] + 1 - count);
  if (bits + (gaps >> k) <= budget_bits) return true;
  if (bits > budget_bits || bits + (gaps >> k) - static_cast<int64_t>(count) >= budget_bits) return false;
  listed.resize(best.ids.size());
  size_t kept = 0;
  for (size_t i = 0; i <= last; ++i) {
    listed[kept] = best.ids[i];
    kept += best.weights[i] >= least;
  }
  bits += listed[0] >> k;
  for (size_t i = 1; i < count; ++i) bits += (listed[i] - listed[i - 1] - 1) >> k;
  return bits <= budget_bits;
}

// Turns the weights of tokens of at least half a unit into units, and leaves those; returns the sum of their
// weights before.
uint64_t list(uint32_t unit, QRow& best) {
  keep_at_least(least_listed(unit), best);
  const auto mass = std::accumulate(best.weights.begin(), best.weights.end(), uint64_t{0});
  for (uint32_t& weight : best.weights) weight = units_of(weight, unit);
  return mass;
}

// Lets the tokens that are not listed weigh 1 each, and a unit as much more as `mass` of `total` asks for.
void share_rest(uint64_t mass, uint64_t total, uint32_t id_end, QRow& row) {
  const auto units = std::accumulate(row.weights.begin(), row.weights.end(), uint64_t{0});
  const uint32_t largest = *std::max_element(row.weights.begin(), row.weights.end());
  const uint32_t per_unit = weight_of_unit(mass, total, units, largest, id_end - row.ids.size());
  for (uint32_t& listed : row.weights) listed *= per_unit;
  row.rest = 1;
  row.id_end = id_end;
}

}  // namespace

void compact_row(int64_t row_bytes, QRow& row, std::vector<uint32_t>& scratch) {
  const uint64_t vocab_size = row.weights.size();
  const auto total = std::accumulate(row.weights.begin(), row.weights.end(), uint64_t{0});
  const bool has_rest = 2 * count_at_least(row.weights, 1) > vocab_size;
  const uint64_t id_end = has_rest ? vocab_size : 0;

  const CompactBudget budget = compact_budget(row_bytes, vocab_size);
  keep_best(budget.entries, row, scratch);
  CHECK(count_at_least(row.weights, kLargestWeight) > 0, "weights that add up to {}, but none is 2^31",
        total);
  int coarse = kUnits, too_fine = -1;  // those tokens with a unit each do fit
  while (coarse - too_fine > 1) {
    const int middle = too_fine + (coarse - too_fine) / 2;
    (fits(budget.bits, row, unit_at(middle), id_end, scratch) ? coarse : too_fine) = middle;
  }
  const uint64_t mass = list(unit_at(coarse), row);
  if (has_rest) share_rest(mass, total, static_cast<uint32_t>(id_end), row);
  row.sum = sum_of(row);
}

}  // namespace outrider
