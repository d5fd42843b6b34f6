// Checks that a verification rule may rely on the draft distributions of a Draft. Pure; a draft that fails is
// dropped and counted before it reaches a target rank.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/draft_tree.h"
#include "base/q_row.h"
#include "base/status.h"
#include "comm/messages/draft_forms.h"

namespace outrider {

// One row of q, and the token that was drafted from it.
inline Status validate_q_row(QKind kind, const QRow& row, TokenId drafted, int64_t vocab_size) {
  if (kind == QKind::kDense ? !row.ids.empty() || row.rest > 0 || row.id_end > 0 : !is_sparse_row(row))
    return malformed("q row: " + std::to_string(row.ids.size()) + " ids and " +
                     std::to_string(row.weights.size()) + " weights that are not a " +
                     (kind == QKind::kDense ? "dense" : "sparse") + " row");
  const uint64_t end =
      std::max<uint64_t>(row.ids.empty() ? row.weights.size() : row.ids.back() + uint64_t{1}, row.id_end);
  if (end > static_cast<uint64_t>(vocab_size))
    return malformed("q row: ids up to " + std::to_string(end - 1) + " do not fit a vocabulary of " +
                     std::to_string(vocab_size));
  if (const uint64_t sum = sum_of(row); sum == 0 || sum != row.sum)
    return malformed("q row: weights add up to " + std::to_string(sum) + ", the row says " +
                     std::to_string(row.sum));
  if (weight_in(row, drafted) == 0)
    return malformed("q row: drafted token " + std::to_string(drafted.value()) + " has weight 0");
  return {};
}

// The rows of a whole draft, as RowNumbers has them; none for kNone. `drafted` passed check_tree().
inline Status validate_q_rows(QKind kind, std::span<const QRow> rows, DraftTreeView drafted,
                              int64_t vocab_size) {
  if (kind == QKind::kNone) return rows.empty() ? Status() : malformed("q rows came without a q kind");
  const RowNumbers numbers(drafted);
  if (numbers.size() != rows.size())
    return malformed(std::to_string(rows.size()) + " q rows for " + std::to_string(drafted.size()) +
                     " tokens" + (drafted.parents.empty() ? "" : " of a tree"));
  for (size_t i = 0; i < drafted.ids.size(); ++i)
    RETURN_IF_ERROR(validate_q_row(kind, rows[numbers.of(i)], drafted.ids[i], vocab_size)
                        .in("draft token " + std::to_string(i)));
  return {};
}
inline Status validate_q_rows(QKind kind, std::span<const QRow> rows, std::span<const TokenId> chain,
                              int64_t vocab_size) {
  return validate_q_rows(kind, rows, DraftTreeView(chain, {}), vocab_size);
}

}  // namespace outrider
