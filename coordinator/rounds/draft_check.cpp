#include "coordinator/rounds/draft_check.h"

#include <algorithm>
#include <cmath>

#include "comm/q_rows.h"

namespace outrider {
namespace {

bool in_vocabulary(int64_t id, int32_t vocab_size) { return id >= 0 && id < vocab_size; }

// The ranks check whether hidden states belong to the drafted tokens.
bool has_valid_hidden_states(const Draft& draft) {
  const auto is_valid = [](const HiddenRow& row) {
    return !row.codes.empty() && std::isnormal(row.scale) && row.scale > 0 && std::isfinite(row.max);
  };
  return draft.q.empty() && draft.hidden.size() == RowNumbers(draft.tree()).size() &&
         std::all_of(draft.hidden.begin(), draft.hidden.end(), is_valid);
}

bool has_form(const Draft& draft, QKind asked_for) {
  if (draft.q_kind == QKind::kHidden) return asked_for == QKind::kHidden;
  const bool is_dense = asked_for == QKind::kDense || asked_for == QKind::kSlices;
  // The ranks check slices. A worker that cannot reach them sends whole rows, and a deterministic drafter
  // sends one-hot sparse rows whatever form was requested.
  if (draft.q_kind == QKind::kSlices) return asked_for == QKind::kSlices;
  const bool is_whole = draft.q_kind == QKind::kSparse || draft.q_kind == QKind::kDense;
  return draft.q_kind == asked_for || (is_dense && is_whole);
}

bool has_valid_q(const Draft& draft, const DraftExpectation& expected) {
  if (draft.ids.empty()) return draft.q.empty() && draft.hidden.empty();
  const auto& asked_for = expected.q_kinds;
  if (std::none_of(asked_for.begin(), asked_for.end(), [&](QKind kind) { return has_form(draft, kind); }))
    return false;
  if (draft.q_kind == QKind::kHidden) return has_valid_hidden_states(draft);
  if (draft.q_kind == QKind::kSlices) return draft.q.empty();
  return validate_q_rows(draft.q_kind, draft.q, draft.tree(), expected.vocab_size).ok();
}

bool is_welcome_tree(const Draft& draft, const DraftExpectation& expected) {
  const TreeLimits limits{.nodes = expected.tree_nodes,
                          .depth = expected.gamma,
                          .children = kMaxTreeChildren,
                          .equal_siblings = expected.equal_siblings};
  return check_tree(draft.tree(), limits).ok();
}

}  // namespace

std::optional<DropReason> check_draft(const Draft& draft, const DraftExpectation& expected) {
  if (draft.epoch != expected.epoch) return DropReason::kStaleEpoch;
  if (draft.round != expected.round) return DropReason::kStaleRound;
  if (draft.base != expected.base) return DropReason::kWrongBase;
  if (draft.prefix_hash != expected.prefix_hash) return DropReason::kWrongHash;
  if (draft.parents.empty() && draft.ids.size() > static_cast<size_t>(expected.gamma))
    return DropReason::kTooLong;
  if (!draft.parents.empty() && !is_welcome_tree(draft, expected)) return DropReason::kTree;
  const auto is_bad = [&](TokenId id) { return !in_vocabulary(id.value(), expected.vocab_size); };
  if (std::any_of(draft.ids.begin(), draft.ids.end(), is_bad)) return DropReason::kBadIds;
  if (!has_valid_q(draft, expected)) return DropReason::kBadQ;
  return std::nullopt;
}

}  // namespace outrider
