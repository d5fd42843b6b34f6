// Whether the draft distributions of a Draft are what a verification rule may rely on, and how long they are
// on the wire. Pure; a draft that fails is dropped and counted before it reaches a target rank.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "comm/messages.h"

namespace outrider {

// One row of q, and the token that was drafted from it.
inline Status validate_q_row(QKind kind, const QRow& row, TokenId drafted, int64_t vocab_size) {
  if (kind == QKind::kDense ? !row.ids.empty() || row.weights.size() > static_cast<size_t>(vocab_size)
                            : row.ids.size() != row.weights.size() || row.ids.empty())
    return malformed("q row: " + std::to_string(row.ids.size()) + " ids and " +
                     std::to_string(row.weights.size()) + " weights do not fit a vocabulary of " +
                     std::to_string(vocab_size));
  for (size_t i = 0; i < row.ids.size(); ++i)
    if (row.ids[i] >= vocab_size || (i > 0 && row.ids[i] <= row.ids[i - 1]))
      return malformed("q row: ids must ascend and stay below the vocabulary size");
  uint64_t sum = 0;
  for (uint32_t weight : row.weights) sum += weight;
  if (sum == 0 || sum != row.sum)
    return malformed("q row: weights add up to " + std::to_string(sum) + ", the row says " +
                     std::to_string(row.sum));
  const auto x = static_cast<uint32_t>(drafted.value());
  size_t at = x;
  if (kind == QKind::kSparse) {
    at = static_cast<size_t>(std::lower_bound(row.ids.begin(), row.ids.end(), x) - row.ids.begin());
    if (at < row.ids.size() && row.ids[at] != x) at = row.ids.size();
  }
  if (at >= row.weights.size() || row.weights[at] == 0)
    return malformed("q row: drafted token " + std::to_string(drafted.value()) + " has weight 0");
  return {};
}

// The rows of a whole draft: one per drafted token, none for kNone.
inline Status validate_q_rows(QKind kind, std::span<const QRow> rows, std::span<const TokenId> drafted,
                              int64_t vocab_size) {
  if (kind == QKind::kNone) return rows.empty() ? Status() : malformed("q rows came without a q kind");
  if (rows.size() != drafted.size())
    return malformed(std::to_string(rows.size()) + " q rows for " + std::to_string(drafted.size()) +
                     " tokens");
  for (size_t i = 0; i < rows.size(); ++i)
    RETURN_IF_ERROR(
        validate_q_row(kind, rows[i], drafted[i], vocab_size).in("draft token " + std::to_string(i)));
  return {};
}

// Bytes that a sparse row of `entries` tokens takes at most on the wire (comm/q_row_fields.h).
inline int64_t sparse_row_bytes(int64_t entries, int64_t vocab_size) {
  const auto varint_bytes = [](uint64_t number) {
    int64_t bytes = 1;
    while (number >>= 7) ++bytes;
    return bytes;
  };
  // The steps between ids add up to less than the vocabulary, so few of them need a second or third byte.
  int64_t steps = entries;
  for (int64_t least = 128; least < vocab_size; least *= 128)
    steps += std::min(entries, (vocab_size - 1) / least);
  const auto sum = varint_bytes(static_cast<uint64_t>(entries) << 31);
  return sum + 2 * varint_bytes(static_cast<uint64_t>(entries)) + steps + 1 + 2 * entries;
}

// The most tokens of which a sparse row never takes more than `bytes`; at least 1.
inline int32_t sparse_entries_within(int64_t bytes, int64_t vocab_size) {
  int64_t entries = 1, too_many = vocab_size + 1;
  while (too_many - entries > 1) {
    const int64_t middle = entries + (too_many - entries) / 2;
    (sparse_row_bytes(middle, vocab_size) <= bytes ? entries : too_many) = middle;
  }
  return static_cast<int32_t>(entries);
}

}  // namespace outrider
