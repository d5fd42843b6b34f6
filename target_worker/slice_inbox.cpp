#include "target_worker/slice_inbox.h"

namespace outrider {

void SliceInbox::gather(std::span<const PlanEntry> entries, Collectives& group, Clock::time_point deadline,
                        std::span<SlicedQ> sliced) {
  (void)collect(entries, deadline);  // who misses what comes out of the sums
  group.all_reduce_sum(slots_.tally(entries));
  slots_.settle(entries, group.size(), sliced);
}

bool SliceInbox::collect(std::span<const PlanEntry> entries, Clock::time_point deadline) {
  while (!slots_.complete(entries)) {
    auto incoming = door_->receive(deadline);
    if (!incoming) return false;
    auto* const slice = std::get_if<QSlice>(&incoming->message);
    if (!slice) continue;
    slots_.put(*slice);
    door_->recycle(std::move(*slice));
  }
  return true;
}

}  // namespace outrider
