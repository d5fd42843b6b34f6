#include "target_worker/slice_slots.h"

#include <algorithm>
#include <numeric>

#include "base/log.h"
#include "base/short_weight.h"
#include "comm/message_check.h"
#include "kernels/sampling/weighted_draw.h"

namespace outrider {
namespace {

bool is_sliced(const PlanEntry& entry) { return entry.q_kind == QKind::kSlices && !entry.draft.empty(); }

// One integer of the tally counts both the ranks that have an entry's slice (kHere) and the ranks that
// received the notice of its transfer (kTold).
constexpr uint64_t kHere = 1, kTold = uint64_t{1} << 32;

// Integers of one entry among the tallies.
size_t tally_size(const PlanEntry& entry) { return 1 + RowNumbers(entry.tree()).size() + entry.draft.size(); }

}  // namespace

SliceSlots::SliceSlots(const SliceSlotsOptions& options)
    : range_(options.range), is_leader_(options.rank == 0), slots_(static_cast<size_t>(options.sequences)) {
  for (Slot& slot : slots_) {
    slot.rows.resize(static_cast<size_t>(options.rows));
    for (QRow& row : slot.rows) row.weights.reserve(static_cast<size_t>(range_.size()));
    slot.drafted.reserve(slot.rows.size());
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

// Not of a sequence that has ended, nor of a round before the newest.
bool SliceSlots::takes(Slot* slot, Round round) const {
  return slot && (slot->count == 0 || round >= slot->round);
}

void SliceSlots::take(Slot& slot, Round round, Generation worker, size_t rows) const {
  slot.round = round;
  slot.worker = worker;
  slot.count = rows;
  slot.link = Slot::Link::kNone;
  slot.on_device = nullptr;
}

void SliceSlots::put(const QSlice& slice) {
  Slot* const slot = find(slice.sequence);
  if (!takes(slot, slice.round) || !fits(slice)) return;
  take(*slot, slice.round, slice.worker, static_cast<size_t>(slice.rows));
  const auto width = static_cast<size_t>(range_.size());
  for (size_t i = 0; i < slot->count; ++i) {
    QRow& row = slot->rows[i];
    row.weights.resize(width);
    if (!unpack_short_weights(std::span(slice.weights).subspan(i * width, width), row.weights.data()))
      slot->count = 0;
    row.sum = std::accumulate(row.weights.begin(), row.weights.end(), uint64_t{0});
  }
}

int32_t SliceSlots::announce(const QTransfer& transfer) {
  Slot* const slot = find(transfer.sequence);
  if (!takes(slot, transfer.round) || !check(transfer, static_cast<int32_t>(slot->rows.size())).ok())
    return static_cast<int32_t>(slots_.size());
  take(*slot, transfer.round, transfer.worker, transfer.sums.size());
  slot->link = Slot::Link::kComing;
  slot->drafted = transfer.drafted;
  for (size_t i = 0; i < slot->count; ++i) {
    slot->rows[i].weights.clear();
    slot->rows[i].sum = transfer.sums[i];
  }
  return static_cast<int32_t>(slot - slots_.data());
}

void SliceSlots::arrived(int32_t index, const QTransfer& transfer, const uint16_t* rows) {
  if (static_cast<size_t>(index) >= slots_.size()) return;
  Slot& slot = slots_[static_cast<size_t>(index)];
  if (slot.link != Slot::Link::kComing || slot.sequence != transfer.sequence ||
      slot.round != transfer.round || slot.worker != transfer.worker)
    return;
  slot.link = rows ? Slot::Link::kHere : Slot::Link::kLost;
  slot.on_device = rows;
}

bool SliceSlots::complete(std::span<const PlanEntry> entries) const {
  const auto is_settled = [this](const PlanEntry& entry) {
    return std::any_of(slots_.begin(), slots_.end(), [&](const Slot& slot) {
      return slot.is_of(entry) && slot.link != Slot::Link::kComing;
    });
  };
  return std::all_of(entries.begin(), entries.end(),
                     [&](const PlanEntry& entry) { return !is_sliced(entry) || is_settled(entry); });
}

std::span<uint64_t> SliceSlots::tally(std::span<const PlanEntry> entries) {
  integers_.clear();
  for (const PlanEntry& entry : entries) {
    if (!is_sliced(entry)) continue;
    const Slot* const slot = find(entry);
    const size_t begin = integers_.size(), drafted = entry.draft.size();
    integers_.resize(begin + tally_size(entry));
    if (!slot) continue;
    uint64_t* const mine = integers_.data() + begin;
    const bool by_link = slot->link != Slot::Link::kNone;
    const bool is_here = !by_link || slot->link == Slot::Link::kHere;
    mine[0] = (is_here ? kHere : 0) + (by_link ? kTold : 0);
    // All ranks have the same sums of rows that came by a link, so only the leader adds them.
    if (!is_here || (by_link && !is_leader_)) continue;
    const RowNumbers numbers(entry.tree());
    for (size_t i = 0; i < numbers.size(); ++i) mine[1 + i] = slot->rows[i].sum;
    for (size_t i = 0; i < drafted; ++i) {
      const QRow& row = slot->rows[numbers.of(i)];
      mine[1 + numbers.size() + i] =
          by_link ? slot->drafted[i] : QView{{}, row.weights, row.sum, range_.begin}.weight(entry.draft[i]);
    }
  }
  return integers_;
}

void SliceSlots::settle(std::span<const PlanEntry> entries, int ranks, std::span<SlicedQ> sliced) {
  const uint64_t* sums = integers_.data();
  for (size_t e = 0; e < entries.size(); ++e) {
    if (!is_sliced(entries[e])) continue;
    const size_t count = RowNumbers(entries[e].tree()).size();
    SlicedQ& q = sliced[e];
    q.drafted = {sums + 1 + count, entries[e].draft.size()};
    // Nothing is drafted that q has no weight for.
    const auto all = static_cast<uint64_t>(ranks), told = sums[0] / kTold;
    q.lost = sums[0] % kTold != all || (told != 0 && told != all) ||
             std::find(q.drafted.begin(), q.drafted.end(), 0u) != q.drafted.end();
    q.link_lost = q.lost && told != 0;
    if (!q.lost) {
      Slot& slot = *find(entries[e]);
      const auto rows = std::span(slot.rows).first(count);
      for (size_t i = 0; i < count; ++i) rows[i].sum = sums[1 + i];
      q.rows = rows;
      q.on_device = slot.on_device;
    }
    sums += tally_size(entries[e]);
  }
}

SliceSlots::Slot* SliceSlots::find(SequenceId sequence) {
  const auto at =
      std::find_if(slots_.begin(), slots_.end(), [&](const Slot& s) { return s.sequence == sequence; });
  return at == slots_.end() ? nullptr : &*at;
}

bool SliceSlots::Slot::is_of(const PlanEntry& entry) const {
  return sequence == entry.sequence && round == entry.round && worker == entry.worker &&
         count == RowNumbers(entry.tree()).size() &&
         (link == Link::kNone || drafted.size() == entry.draft.size());
}

SliceSlots::Slot* SliceSlots::find(const PlanEntry& entry) {
  const auto at =
      std::find_if(slots_.begin(), slots_.end(), [&](const Slot& slot) { return slot.is_of(entry); });
  return at == slots_.end() ? nullptr : &*at;
}

bool SliceSlots::fits(const QSlice& slice) const {
  return slice.rows > 0 && static_cast<size_t>(slice.rows) <= slots_.front().rows.size() &&
         static_cast<int64_t>(slice.weights.size()) == slice.rows * range_.size();
}

}  // namespace outrider
