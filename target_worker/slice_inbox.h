// Where slices of dense draft distributions wait for the plan that names their draft (QKind::kSlices). One
// slot per open sequence, for the newest round: sequences x draft length x slice width x 4 bytes at most. One
// thread.
#pragma once

#include <map>
#include <memory>
#include <span>

#include "comm/collectives.h"
#include "comm/transport.h"
#include "transformer/shard.h"

namespace outrider {

// What all ranks agree on about an entry of kSlices.
struct SlicedQ {
  bool lost = false;           // some rank misses its slice
  std::span<const QRow> rows;  // this rank's slices, with the sums of whole rows; valid until the next gather
  std::vector<uint64_t> drafted;  // weights of the draft tokens
};

class SliceInbox {
 public:
  // `door`: what draft workers connect to. `range`: the ids of this rank.
  SliceInbox(std::unique_ptr<Transport> door, IndexRange range) : door_(std::move(door)), range_(range) {}

  void open(SequenceId sequence) { slots_.try_emplace(sequence); }
  void close(SequenceId sequence) { slots_.erase(sequence); }

  // Collective. Waits for the slices of the entries of kSlices, until the deadline; then all ranks add up
  // what they hold. Fills `sliced` at the places of these entries.
  void gather(std::span<const PlanEntry> entries, Collectives& group, Clock::time_point deadline,
              std::span<SlicedQ> sliced);

 private:
  void collect(std::span<const PlanEntry> entries, Clock::time_point deadline);
  std::vector<QRow>* rows_of(const PlanEntry& entry);  // null: they did not come, or do not fit
  bool is_here(const PlanEntry& entry) const;
  bool fits(const QSlice& slice) const;

  const std::unique_ptr<Transport> door_;
  const IndexRange range_;
  std::map<SequenceId, QSlice> slots_;
  std::vector<uint64_t> integers_;  // of one gather
};

}  // namespace outrider
