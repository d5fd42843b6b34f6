#include "transformer/sampling/compact_row.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/log.h"
#include "base/q_row.h"
#include "transformer/sampling/compact_units.h"
#include "transformer/sampling/shard_row.h"

namespace outrider {
namespace {

// Packed like RankedToken: the larger weight first, then the lower id.
uint64_t rank_by_weight(uint32_t weight, size_t id) {
  return static_cast<uint64_t>(weight) << 32 | (0xFFFFFFFF - static_cast<uint32_t>(id));
}
uint32_t weight_of_rank(uint64_t ranked) { return static_cast<uint32_t>(ranked >> 32); }
uint32_t id_of_rank(uint64_t ranked) { return 0xFFFFFFFF - static_cast<uint32_t>(ranked); }

// A weight that at least m tokens reach: the m-th best of the chunks' best. 1 if there are too few chunks.
uint32_t weight_floor(std::span<const uint32_t> weights, size_t m, std::vector<uint64_t>& scratch) {
  const size_t chunk = kChunkTokens;
  if (weights.size() / chunk <= m) return 1;
  scratch.clear();
  for (size_t begin = 0; begin < weights.size(); begin += chunk) {
    const auto part = weights.subspan(begin, std::min(chunk, weights.size() - begin));
    scratch.push_back(*std::max_element(part.begin(), part.end()));
  }
  const auto nth = scratch.begin() + static_cast<std::ptrdiff_t>(m - 1);
  std::nth_element(scratch.begin(), nth, scratch.end(), std::greater<>());
  return std::max(static_cast<uint32_t>(*nth), 1u);
}

// The best m of a dense row's tokens that have any weight, by (weight desc, id asc), in the order of their
// ids.
void keep_best(size_t m, QRow& row, std::vector<uint64_t>& scratch) {
  const uint32_t floor = weight_floor(row.weights, m, scratch);
  scratch.clear();
  for (size_t v = 0; v < row.weights.size(); ++v)
    if (row.weights[v] >= floor) scratch.push_back(rank_by_weight(row.weights[v], v));
  if (scratch.size() > m) {
    std::nth_element(scratch.begin(), scratch.begin() + static_cast<std::ptrdiff_t>(m), scratch.end(),
                     std::greater<>());
    scratch.resize(m);
  }
  std::sort(scratch.begin(), scratch.end(),
            [](uint64_t a, uint64_t b) { return id_of_rank(a) < id_of_rank(b); });
  row.weights.clear();
  for (uint64_t ranked : scratch) {
    row.ids.push_back(id_of_rank(ranked));
    row.weights.push_back(weight_of_rank(ranked));
  }
}

constexpr uint32_t kLargestWeight = uint32_t{1} << 31;

// Of the row on the wire, but for the fields in front, when tokens of less than half a unit are left out.
// `id_end`: 0 if it is one more than the last id that is listed.
int64_t bits_of(const QRow& best, uint32_t unit, uint64_t id_end) {
  const uint32_t least = least_listed(unit);
  uint64_t count = 0, last = 0;
  for (size_t i = 0; i < best.ids.size(); ++i) {
    const bool is_listed = best.weights[i] >= least;
    count += is_listed;
    last = is_listed ? best.ids[i] : last;
  }
  const int k = gap_parameter(id_end > 0 ? id_end : last + 1, count);
  int64_t bits = 8 * varint_bytes(count);
  uint32_t next = 0;
  for (size_t i = 0; i < best.ids.size(); ++i) {
    if (best.weights[i] < least) continue;
    bits += rice_bits(best.ids[i] - next, k) + elias_gamma_bits(units_of(best.weights[i], unit));
    next = best.ids[i] + 1;
  }
  return bits;
}

// Leaves the listed tokens with their units; returns the sum of their weights before.
uint64_t list(uint32_t unit, QRow& best) {
  uint64_t mass = 0;
  size_t kept = 0;
  for (size_t i = 0; i < best.ids.size(); ++i) {
    const uint32_t units = units_of(best.weights[i], unit);
    if (units == 0) continue;
    mass += best.weights[i];
    best.ids[kept] = best.ids[i];
    best.weights[kept++] = units;
  }
  best.ids.resize(kept);
  best.weights.resize(kept);
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

void compact_row(int64_t row_bytes, QRow& row, std::vector<uint64_t>& scratch) {
  const uint64_t vocab_size = row.weights.size();
  const auto total = std::accumulate(row.weights.begin(), row.weights.end(), uint64_t{0});
  CHECK(total >= kLargestWeight, "weights that add up to {} have none of 2^31", total);
  const auto zeros = static_cast<uint64_t>(std::count(row.weights.begin(), row.weights.end(), 0u));
  const bool has_rest = 2 * zeros < vocab_size;
  const uint64_t id_end = has_rest ? vocab_size : 0;

  const CompactBudget budget = compact_budget(row_bytes, vocab_size);
  keep_best(budget.entries, row, scratch);
  int fits = kUnits, too_fine = -1;  // those tokens with a unit each do fit
  while (fits - too_fine > 1) {
    const int middle = too_fine + (fits - too_fine) / 2;
    (bits_of(row, unit_at(middle), id_end) <= budget.bits ? fits : too_fine) = middle;
  }
  const uint64_t mass = list(unit_at(fits), row);
  if (has_rest) share_rest(mass, total, static_cast<uint32_t>(id_end), row);
  row.sum = sum_of(row);
}

}  // namespace outrider
