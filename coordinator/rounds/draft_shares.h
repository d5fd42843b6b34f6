// Fair shares of drafting costs. A request that chose its own draft length (Request::pays_for_drafts) owes
// the time that its drafts add to the passes of its target group, and drafts nothing until all but the newest
// draft is paid. This delays its own text, not that of other requests. The text of match rules does not
// depend on it.
#pragma once

#include <span>

#include "coordinator/costs/cost_model.h"
#include "coordinator/scheduler/step_planner.h"

namespace outrider {

class DraftShares {
 public:
  // The largest average share of a pass's time that the drafts of requests with their own length may add.
  static constexpr double kShare = 0.4;

  // When a plan is sent: adds the costs of its drafts, and reduces each request's debt by a share of the
  // pass. The smallest debt becomes 0, so requests with equal settings never wait for each other.
  static void settle(std::span<const PlannedEntry> plan, RequestMap& requests, const CostModel& cost);
};

}  // namespace outrider
