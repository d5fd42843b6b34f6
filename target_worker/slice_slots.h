// Where a rank's slices of dense draft distributions wait for the plan that names their draft
// (QKind::kSlices): one slot for each open sequence, for its newest round. Everything is allocated when it is
// made: sequences x draft length x slice width x 4 bytes of address space, of which a draft touches its own
// rows. Pure: no I/O, no time.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "comm/messages.h"
#include "transformer/shard.h"

namespace outrider {

// What all ranks agree on about an entry of kSlices that drafts something. Both spans are valid until the
// next tally.
struct SlicedQ {
  bool lost = false;                  // some rank misses its slice
  std::span<const QRow> rows;         // this rank's slices, with the sums of whole rows
  std::span<const uint64_t> drafted;  // weights of the draft tokens
};

struct SliceSlotsOptions {
  IndexRange range;       // the ids of this rank
  int32_t sequences = 0;  // open at once
  int32_t rows = 0;       // of one draft
};

class SliceSlots {
 public:
  explicit SliceSlots(const SliceSlotsOptions& options);

  void open(SequenceId sequence);
  void close(SequenceId sequence);

  // Kept if it fits, its sequence is open, and no newer round's has come.
  void put(const QSlice& slice);
  // Whether there is a slice for every entry of kSlices.
  bool complete(std::span<const PlanEntry> entries) const;

  // What all ranks must add up: by entry of kSlices, who has its slice, then the sums of its rows, then the
  // weights of the tokens drafted from them.
  std::span<uint64_t> tally(std::span<const PlanEntry> entries);
  // Once the tally holds the sums over all ranks: fills `sliced` at the places of these entries.
  void settle(std::span<const PlanEntry> entries, int ranks, std::span<SlicedQ> sliced);

 private:
  struct Slot {
    bool holds(const PlanEntry& entry) const;  // the rows of this draft

    std::optional<SequenceId> sequence;  // empty: free
    Round round;
    Generation worker;
    size_t count = 0;  // of the rows that came; 0: none yet
    std::vector<QRow> rows;
  };
  Slot* find(SequenceId sequence);
  std::span<QRow> rows_of(const PlanEntry& entry);  // empty: they did not come, or do not fit
  bool fits(const QSlice& slice) const;

  const IndexRange range_;
  std::vector<Slot> slots_;
  std::vector<uint64_t> integers_;  // of one tally
};

}  // namespace outrider
