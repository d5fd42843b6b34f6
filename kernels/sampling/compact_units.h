// The arithmetic of compact rows (compact_row.h), for the host and for kernels alike.
#pragma once

#include <cstdint>

#include "base/bit_codes.h"
#include "base/shared_code.h"

namespace outrider {

// Units from the largest weight, 2^31, down to 1, eight to an octave.
constexpr int kUnits = 31 * 8;
OUTRIDER_SHARED_CODE constexpr uint32_t unit_at(int index) {
  return static_cast<uint32_t>((uint64_t{8} + static_cast<uint64_t>(index & 7)) << (index >> 3) >> 3);
}
OUTRIDER_SHARED_CODE constexpr uint32_t units_of(uint32_t weight, uint32_t unit) {
  return (weight + unit / 2) / unit;
}
// The least weight that has a unit.
OUTRIDER_SHARED_CODE constexpr uint32_t least_listed(uint32_t unit) { return unit - unit / 2; }

// Weight of one unit, so that the listed tokens' share of the row is `mass` of `total` while each of the
// `others` tokens that are not listed weighs 1. `largest`, the most units of one token, times the result must
// stay a valid weight.
OUTRIDER_SHARED_CODE inline uint32_t weight_of_unit(uint64_t mass, uint64_t total, uint64_t units,
                                                    uint32_t largest, uint64_t others) {
  constexpr uint32_t kMaxPerUnit = (1 << 14) - 1;  // two bytes; what is left is next to nothing then
  const uint64_t left = total > mass ? total - mass : 1;
  const double weight = static_cast<double>(mass) * static_cast<double>(others) /
                        (static_cast<double>(left) * static_cast<double>(units));
  const uint32_t fits = 0xFFFFFFFF / largest, most = fits < kMaxPerUnit ? fits : kMaxPerUnit;
  if (!(weight > 1)) return 1;
  return weight < most ? static_cast<uint32_t>(weight + 0.5) : most;
}

// Limits of a row on the wire. bits: without the fields in front, the end of the ids, the others' weight (1
// or 0) and the weight of a unit. entries: how many tokens of one unit each fit, wherever in the vocabulary
// they are, at least 1; no more tokens are considered.
struct CompactBudget {
  int64_t bits = 0;
  uint64_t entries = 1;
};
inline CompactBudget compact_budget(int64_t row_bytes, uint64_t vocab_size) {
  CompactBudget budget{.bits = 8 * (row_bytes - varint_bytes(vocab_size) - 1 - 2)};
  const int64_t bits = budget.bits - 8 * varint_bytes(vocab_size);
  uint64_t too_many = vocab_size + 1;
  while (too_many - budget.entries > 1) {
    const uint64_t middle = budget.entries + (too_many - budget.entries) / 2;
    const int k = gap_parameter(vocab_size, middle);
    const auto most = middle * static_cast<uint64_t>(k + 2) + (vocab_size >> k);
    (static_cast<int64_t>(most) <= bits ? budget.entries : too_many) = middle;
  }
  return budget;
}

}  // namespace outrider
