// Takes a rank's slices of dense draft distributions at its door and agrees with the other ranks on what came
// (QKind::kSlices). One thread.
#pragma once

#include <memory>
#include <span>

#include "comm/collectives.h"
#include "comm/transport.h"
#include "target_worker/slice_slots.h"

namespace outrider {

class SliceInbox {
 public:
  // `door`: what draft workers connect to.
  SliceInbox(std::unique_ptr<Transport> door, const SliceSlotsOptions& options)
      : door_(std::move(door)), slots_(options) {}

  // Collective. Waits for the slices of the entries of kSlices, until the deadline; then all ranks add up
  // what they hold. Fills `sliced` at the places of these entries.
  void gather(std::span<const PlanEntry> entries, Collectives& group, Clock::time_point deadline,
              std::span<SlicedQ> sliced);

  // Its first half, for those who add up by themselves: whether all slices are here.
  bool collect(std::span<const PlanEntry> entries, Clock::time_point deadline);
  SliceSlots& slots() { return slots_; }

 private:
  const std::unique_ptr<Transport> door_;
  SliceSlots slots_;
};

}  // namespace outrider
