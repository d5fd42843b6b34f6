// The draft distribution of one token as integers: drafter, wire and target use the same numbers for drawing,
// sending and testing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/types.h"

namespace outrider {

// q(v) = weight(v) / sum. Dense: ids is empty, weights[v] for every v, and 0 from the end of weights on.
// Sparse: ids strictly ascending, with weights of at least 1; other ids below `id_end` have weight `rest`,
// and ids from there on 0. A deterministic drafter sends one id with weight 1.
struct QRow {
  std::vector<uint32_t> ids;
  std::vector<uint32_t> weights;
  uint64_t sum = 0;  // of the weights of all ids
  uint32_t rest = 0;
  uint32_t id_end = 0;  // 0 unless there is a rest
};

// The sum of the weights of all ids.
inline uint64_t sum_of(const QRow& row) {
  const uint64_t others = row.id_end > row.ids.size() ? row.id_end - row.ids.size() : 0;
  return std::accumulate(row.weights.begin(), row.weights.end(), row.rest * others);
}

// True for a well-formed sparse row of any vocabulary. Only such rows can be encoded.
inline bool is_sparse_row(const QRow& row) {
  if (row.ids.empty() || row.ids.size() != row.weights.size()) return false;
  for (size_t i = 0; i < row.ids.size(); ++i)
    if (row.weights[i] == 0 || (i > 0 && row.ids[i] <= row.ids[i - 1])) return false;
  return row.rest > 0 ? row.ids.back() < row.id_end : row.id_end == 0;
}

// 0 for an id outside the vocabulary.
inline uint64_t weight_in(const QRow& row, TokenId id) {
  if (id.value() < 0) return 0;
  const auto v = static_cast<uint32_t>(id.value());
  if (row.ids.empty()) return v < row.weights.size() ? row.weights[v] : 0;
  const auto at = std::lower_bound(row.ids.begin(), row.ids.end(), v);
  if (at != row.ids.end() && *at == v) return row.weights[static_cast<size_t>(at - row.ids.begin())];
  return v < row.id_end ? row.rest : 0;
}

}  // namespace outrider
