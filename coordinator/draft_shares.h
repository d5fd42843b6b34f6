// What drafts cost others. A request that chose its own draft length (Request::pays_for_drafts) owes the time
// that its drafts add to the passes of its target group, and drafts nothing until all but the newest is paid:
// its own text comes later, and not that of requests beside it. The text of match rules does not depend on
// it.
#pragma once

#include <span>

#include "coordinator/cost_model.h"
#include "coordinator/step_planner.h"

namespace outrider {

class DraftShares {
 public:
  // Largest average share that a request's drafts may add to the time of a pass, if it chose their length.
  static constexpr double kShare = 0.4;

  // Of a plan that goes out: notes what its drafts cost, and takes a share of the pass from what each request
  // owes. The one that owes least owes nothing: where all requests ask for the same, none waits for another.
  static void settle(std::span<const PlannedEntry> plan, RequestMap& requests, const CostModel& cost);
};

}  // namespace outrider
