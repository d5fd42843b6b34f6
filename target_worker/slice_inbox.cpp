#include "target_worker/slice_inbox.h"

#include <algorithm>
#include <numeric>

#include "transformer/sampling/weighted_draw.h"

namespace outrider {
namespace {

bool is_sliced(const PlanEntry& entry) { return entry.q_kind == QKind::kSlices; }

}  // namespace

// Per entry: who has its slices; per row: its sum, and the weight of the token drafted from it.
void SliceInbox::gather(std::span<const PlanEntry> entries, Collectives& group, Clock::time_point deadline,
                        std::span<SlicedQ> sliced) {
  collect(entries, deadline);
  integers_.clear();
  for (const PlanEntry& entry : entries) {
    if (!is_sliced(entry)) continue;
    const std::vector<QRow>* const rows = rows_of(entry);
    integers_.push_back(rows != nullptr);
    for (size_t i = 0; i < entry.draft.size(); ++i) {
      const QRow none, &row = rows ? (*rows)[i] : none;
      integers_.push_back(row.sum);
      integers_.push_back(QView{{}, row.weights, row.sum, range_.begin}.weight(entry.draft[i]));
    }
  }
  group.all_reduce_sum(std::span(integers_));
  const uint64_t* sum = integers_.data();
  for (size_t e = 0; e < entries.size(); ++e) {
    if (!is_sliced(entries[e])) continue;
    SlicedQ& q = sliced[e];
    q.lost = *sum++ != static_cast<uint64_t>(group.size());
    std::vector<QRow>* const rows = q.lost ? nullptr : rows_of(entries[e]);
    for (size_t i = 0; i < entries[e].draft.size(); ++i, sum += 2) {
      q.lost |= sum[1] == 0;  // nothing is drafted that q has no weight for
      q.drafted.push_back(sum[1]);
      if (rows) (*rows)[i].sum = sum[0];
    }
    if (rows) q.rows = *rows;
  }
}

void SliceInbox::collect(std::span<const PlanEntry> entries, Clock::time_point deadline) {
  const auto is_missing = [this](const PlanEntry& entry) { return is_sliced(entry) && !is_here(entry); };
  while (std::any_of(entries.begin(), entries.end(), is_missing)) {
    auto incoming = door_->receive(deadline);
    if (!incoming) return;
    auto* slice = std::get_if<QSlice>(&incoming->message);
    if (!slice || !fits(*slice)) continue;
    const auto slot = slots_.find(slice->sequence);  // none: of a sequence that has ended
    if (slot != slots_.end() && slice->round >= slot->second.round) slot->second = std::move(*slice);
  }
}

std::vector<QRow>* SliceInbox::rows_of(const PlanEntry& entry) {
  return is_here(entry) ? &slots_.at(entry.sequence).rows : nullptr;
}

bool SliceInbox::is_here(const PlanEntry& entry) const {
  const auto slot = slots_.find(entry.sequence);
  return slot != slots_.end() && slot->second.round == entry.round && slot->second.worker == entry.worker &&
         slot->second.rows.size() == entry.draft.size();
}

bool SliceInbox::fits(const QSlice& slice) const {
  return std::all_of(slice.rows.begin(), slice.rows.end(), [this](const QRow& row) {
    return row.ids.empty() && row.weights.size() <= static_cast<size_t>(range_.size()) &&
           row.sum == std::accumulate(row.weights.begin(), row.weights.end(), uint64_t{0});
  });
}

}  // namespace outrider
