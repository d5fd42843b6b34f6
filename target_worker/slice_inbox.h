// Receives a rank's slices of dense draft distributions at its own endpoint, and agrees with the other ranks
// on which slices arrived (QKind::kSlices). At the leader's endpoint, draft workers with a head also receive
// rows of hidden states from device to device. One thread.
#pragma once

#include <memory>
#include <span>

#include "comm/collectives.h"
#include "comm/transport.h"
#include "target_worker/hidden_state_links.h"
#include "target_worker/slice_links.h"
#include "target_worker/slice_slots.h"

namespace outrider {

class SliceInbox {
 public:
  // `endpoint`: the endpoint to which draft workers connect. `links`: from their devices to this rank's, with
  // one slot more than there are sequences; empty: no links. `hidden_states`: from the leader's device to
  // theirs; empty: no links.
  SliceInbox(std::unique_ptr<Transport> endpoint, const SliceSlotsOptions& options, RowLinks links = {},
             RowLinks hidden_states = {})
      : endpoint_(std::move(endpoint)),
        slots_(options),
        has_links_(links.join || hidden_states.join),
        links_(std::move(links)),
        hidden_states_(std::move(hidden_states), *endpoint_) {}

  // Forgets slices of earlier plans. Takes all messages that have arrived, including dropped drafts, so that
  // no worker's transfers wait for long, and link offers that cannot be accepted, so that they are refused at
  // once. Called before every plan.
  void look();

  // Collective. Waits for the slices of the kSlices entries until the deadline; then all ranks add up their
  // tallies. Fills `sliced` at the places of these entries.
  void gather(std::span<const PlanEntry> entries, Collectives& group, Clock::time_point deadline,
              std::span<SlicedQ> sliced);

  // The first half of gather(), for callers that add up by themselves. True if nothing is missing.
  bool collect(std::span<const PlanEntry> entries, Clock::time_point deadline);
  // Called when there will be no more plans.
  void end_links();
  SliceSlots& slots() { return slots_; }
  HiddenStateLinks& hidden_states() { return hidden_states_; }

 private:
  void take(Incoming& incoming);

  const std::unique_ptr<Transport> endpoint_;
  SliceSlots slots_;
  const bool has_links_;
  SliceLinks links_;
  HiddenStateLinks hidden_states_;
};

}  // namespace outrider
