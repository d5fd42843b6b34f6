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
    const auto incoming = door_->receive(deadline);
    if (!incoming) return false;
    if (const auto* slice = std::get_if<QSlice>(&incoming->message)) slots_.put(*slice);
  }
  return true;
}

}  // namespace outrider
