#include "target_worker/slice_slots.h"

#include <algorithm>
#include <numeric>

#include "base/log.h"
#include "base/short_weight.h"
#include "transformer/sampling/weighted_draw.h"

namespace outrider {
namespace {

bool is_sliced(const PlanEntry& entry) { return entry.q_kind == QKind::kSlices && !entry.draft.empty(); }

// Of one entry among the integers.
size_t tally_size(const PlanEntry& entry) { return 1 + 2 * entry.draft.size(); }

}  // namespace

SliceSlots::SliceSlots(const SliceSlotsOptions& options)
    : range_(options.range), slots_(static_cast<size_t>(options.sequences)) {
  for (Slot& slot : slots_) {
    slot.rows.resize(static_cast<size_t>(options.rows));
    for (QRow& row : slot.rows) row.weights.reserve(static_cast<size_t>(range_.size()));
  }
  integers_.reserve(slots_.size() * (1 + 2 * static_cast<size_t>(options.rows)));
}

void SliceSlots::open(SequenceId sequence) {
  const auto free = std::find_if(slots_.begin(), slots_.end(), [](const Slot& s) { return !s.sequence; });
  CHECK(free != slots_.end(), "all {} slots for slices are taken", slots_.size());
  free->sequence = sequence;
  free->count = 0;
}

void SliceSlots::close(SequenceId sequence) {
  if (Slot* const slot = find(sequence)) slot->sequence.reset();
}

void SliceSlots::put(const QSlice& slice) {
  Slot* const slot = find(slice.sequence);  // none: of a sequence that has ended
  if (!slot || !fits(slice) || (slot->count > 0 && slice.round < slot->round)) return;
  slot->round = slice.round;
  slot->worker = slice.worker;
  slot->count = static_cast<size_t>(slice.rows);
  const auto width = static_cast<size_t>(range_.size());
  for (size_t i = 0; i < slot->count; ++i) {
    QRow& row = slot->rows[i];
    row.weights.resize(width);
    if (!unpack_short_weights(std::span(slice.weights).subspan(i * width, width), row.weights.data()))
      slot->count = 0;
    row.sum = std::accumulate(row.weights.begin(), row.weights.end(), uint64_t{0});
  }
}

bool SliceSlots::complete(std::span<const PlanEntry> entries) const {
  const auto is_here = [this](const PlanEntry& entry) {
    return std::any_of(slots_.begin(), slots_.end(), [&](const Slot& slot) { return slot.holds(entry); });
  };
  return std::all_of(entries.begin(), entries.end(),
                     [&](const PlanEntry& entry) { return !is_sliced(entry) || is_here(entry); });
}

std::span<uint64_t> SliceSlots::tally(std::span<const PlanEntry> entries) {
  integers_.clear();
  for (const PlanEntry& entry : entries) {
    if (!is_sliced(entry)) continue;
    const auto rows = rows_of(entry);
    const size_t begin = integers_.size(), drafted = entry.draft.size();
    integers_.resize(begin + tally_size(entry));
    if (rows.empty()) continue;
    uint64_t* const mine = integers_.data() + begin;
    mine[0] = 1;
    for (size_t i = 0; i < drafted; ++i) {
      mine[1 + i] = rows[i].sum;
      mine[1 + drafted + i] = QView{{}, rows[i].weights, rows[i].sum, range_.begin}.weight(entry.draft[i]);
    }
  }
  return integers_;
}

void SliceSlots::settle(std::span<const PlanEntry> entries, int ranks, std::span<SlicedQ> sliced) {
  const uint64_t* sums = integers_.data();
  for (size_t e = 0; e < entries.size(); ++e) {
    if (!is_sliced(entries[e])) continue;
    const size_t drafted = entries[e].draft.size();
    SlicedQ& q = sliced[e];
    q.drafted = {sums + 1 + drafted, drafted};
    // Nothing is drafted that q has no weight for.
    q.lost = sums[0] != static_cast<uint64_t>(ranks) ||
             std::find(q.drafted.begin(), q.drafted.end(), 0u) != q.drafted.end();
    if (!q.lost) {
      const auto rows = rows_of(entries[e]);
      for (size_t i = 0; i < drafted; ++i) rows[i].sum = sums[1 + i];
      q.rows = rows;
    }
    sums += tally_size(entries[e]);
  }
}

SliceSlots::Slot* SliceSlots::find(SequenceId sequence) {
  const auto at =
      std::find_if(slots_.begin(), slots_.end(), [&](const Slot& s) { return s.sequence == sequence; });
  return at == slots_.end() ? nullptr : &*at;
}

bool SliceSlots::Slot::holds(const PlanEntry& entry) const {
  return sequence == entry.sequence && round == entry.round && worker == entry.worker &&
         count == entry.draft.size();
}

std::span<QRow> SliceSlots::rows_of(const PlanEntry& entry) {
  const auto at =
      std::find_if(slots_.begin(), slots_.end(), [&](const Slot& slot) { return slot.holds(entry); });
  return at == slots_.end() ? std::span<QRow>() : std::span(at->rows).first(at->count);
}

bool SliceSlots::fits(const QSlice& slice) const {
  return slice.rows > 0 && static_cast<size_t>(slice.rows) <= slots_.front().rows.size() &&
         static_cast<int64_t>(slice.weights.size()) == slice.rows * range_.size();
}

}  // namespace outrider
