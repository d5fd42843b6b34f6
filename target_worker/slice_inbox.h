// Takes a rank's slices of dense draft distributions at its door and agrees with the other ranks on what came
// (QKind::kSlices). At the leader's, draft workers with a head also take rows of states from device to
// device. One thread.
#pragma once

#include <memory>
#include <span>

#include "comm/collectives.h"
#include "comm/transport.h"
#include "target_worker/slice_links.h"
#include "target_worker/slice_slots.h"
#include "target_worker/state_links.h"

namespace outrider {

class SliceInbox {
 public:
  // `door`: what draft workers connect to. `links`: from their devices to this rank's, with a slot more than
  // there are sequences; empty: none. `states`: from the leader's device to theirs; empty: none.
  SliceInbox(std::unique_ptr<Transport> door, const SliceSlotsOptions& options, RowLinks links = {},
             RowLinks states = {})
      : door_(std::move(door)),
        slots_(options),
        has_links_(links.join || states.join),
        links_(std::move(links)),
        states_(std::move(states), *door_) {}

  // What came for earlier plans is no longer needed. Takes what has arrived, dropped drafts too, so that no
  // worker's transfers wait for long, and offers of links that cannot be, so that they are refused at once.
  // Before every plan.
  void look();

  // Collective. Waits for the slices of the entries of kSlices, until the deadline; then all ranks add up
  // what they hold. Fills `sliced` at the places of these entries.
  void gather(std::span<const PlanEntry> entries, Collectives& group, Clock::time_point deadline,
              std::span<SlicedQ> sliced);

  // Its first half, for those who add up by themselves: whether nothing is missing.
  bool collect(std::span<const PlanEntry> entries, Clock::time_point deadline);
  // Nobody plans any more.
  void end_links();
  SliceSlots& slots() { return slots_; }
  StateLinks& states() { return states_; }

 private:
  void take(Incoming& incoming);

  const std::unique_ptr<Transport> door_;
  SliceSlots slots_;
  const bool has_links_;
  SliceLinks links_;
  StateLinks states_;
};

}  // namespace outrider
