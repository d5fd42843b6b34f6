#include "target_worker/hidden_rows.h"

#include <algorithm>

#include "kernels/sampling/penalties.h"
#include "kernels/sampling/row_kernels.h"
#include "kernels/sampling/weighted_draw.h"

namespace outrider {
namespace {

constexpr int64_t kRowsAtATime = 4;  // what shares one reading of the head

bool is_hidden(const PlanEntry& entry) { return entry.q_kind == QKind::kHidden && !entry.draft.empty(); }

IndexRange ids_within(IndexRange range, const DraftHead& head) {
  const int64_t end = head.ids().end;
  return {std::min(range.begin, end), std::min(range.end, end)};
}

}  // namespace

HiddenRows::HiddenRows(std::shared_ptr<const DraftHead> head, IndexRange range, int64_t rows)
    : head_(std::move(head)),
      ids_(ids_within(range, *head_)),
      rows_(static_cast<size_t>(rows)),
      logits_(static_cast<size_t>(kRowsAtATime * ids_.size())),
      chunk_max_(static_cast<size_t>(Chunks{ids_}.count())) {
  for (QRow& row : rows_) row.weights.reserve(static_cast<size_t>(ids_.size()));
  integers_.reserve(3 * rows_.size());
}

void HiddenRows::gather(std::span<const PlanEntry> entries, std::span<const SamplingParams* const> sampling,
                        Collectives& group, std::span<SlicedQ> sliced) {
  integers_.clear();
  size_t first = 0;
  for (size_t e = 0; e < entries.size(); ++e) {
    const PlanEntry& entry = entries[e];
    if (!is_hidden(entry)) continue;
    const size_t drafted = entry.draft.size();
    const RowNumbers numbers(entry.tree());
    CHECK(first + numbers.size() <= rows_.size(), "more than {} rows of q", rows_.size());
    const auto rows = std::span(rows_).subspan(first, numbers.size());
    first += numbers.size();
    const bool content = make_rows(entry, *sampling[e], rows);
    integers_.push_back(content);
    for (const QRow& row : rows) integers_.push_back(content ? row.sum : 0);
    for (size_t i = 0; i < drafted; ++i) {
      const QRow& row = rows[numbers.of(i)];
      integers_.push_back(content ? QView{{}, row.weights, row.sum, ids_.begin}.weight(entry.draft[i]) : 0);
    }
  }
  if (integers_.empty()) return;
  group.all_reduce_sum(integers_);
  std::span<const uint64_t> sums = integers_;
  first = 0;
  for (size_t e = 0; e < entries.size(); ++e) {
    if (!is_hidden(entries[e])) continue;
    const size_t drafted = entries[e].draft.size();
    const auto rows = std::span(rows_).subspan(first, RowNumbers(entries[e].tree()).size());
    first += rows.size();
    for (size_t i = 0; i < rows.size(); ++i) rows[i].sum = sums[1 + i];
    SlicedQ& q = sliced[e];
    q.rows = rows;
    q.drafted = sums.subspan(1 + rows.size(), drafted);
    q.lost = sums[0] != static_cast<uint64_t>(group.size()) ||
             std::find(q.drafted.begin(), q.drafted.end(), 0u) != q.drafted.end();
    sums = sums.subspan(1 + rows.size() + drafted);
  }
}

bool HiddenRows::make_rows(const PlanEntry& entry, const SamplingParams& sampling, std::span<QRow> rows) {
  const std::span<const HiddenRow> hidden_states = entry.hidden;
  const auto fits = [&](const HiddenRow& state) {
    return static_cast<int64_t>(state.codes.size()) == head_->hidden_size();
  };
  if (hidden_states.size() != rows.size() || !std::all_of(hidden_states.begin(), hidden_states.end(), fits))
    return false;
  const auto width = static_cast<size_t>(ids_.size());
  for (size_t first = 0; first < hidden_states.size(); first += kRowsAtATime) {
    const size_t count = std::min<size_t>(kRowsAtATime, hidden_states.size() - first);
    head_->logits(hidden_states.subspan(first, count), ids_,
                  {logits_.data(), {static_cast<int64_t>(count), ids_.size()}}, scratch_);
    for (size_t i = 0; i < count; ++i)
      if (!make_row(hidden_states[first + i], inverse_temperature(sampling),
                    std::span(logits_).subspan(i * width, width), rows[first + i]))
        return false;
  }
  return true;
}

// Turns logits into a row of q as DraftSampler does without filters. Refuses a row if the stated maximum is
// not the largest logit: weights could overflow.
bool HiddenRows::make_row(const HiddenRow& state, float inverse_temperature, std::span<float> logits,
                          QRow& row) {
  const bool nan = scale_and_scan(logits, Chunks{ids_}, inverse_temperature, chunk_max_);
  if (nan || std::any_of(chunk_max_.begin(), chunk_max_.end(), [&](float max) { return max > state.max; }))
    return false;
  row.weights.resize(logits.size());
  fill_draft_weights(logits, state.max, row.weights);
  row.sum = shorten_weights(row.weights);
  return true;
}

}  // namespace outrider
