// A target group that answers StepPlans without a model: verdicts from an acceptance process, time from a
// cost.
#pragma once

#include "cluster/acceptance_process.h"
#include "cluster/simulation/forward_cost.h"
#include "comm/messages.h"

namespace outrider {

class SimulatedTarget {
 public:
  SimulatedTarget(const ForwardCost& cost, const AcceptanceProcess& acceptance)
      : cost_(cost), acceptance_(acceptance) {}
  // The result says in forward_ns how long the pass took.
  StepResult verify(const StepPlan& plan);
  double busy_seconds() const { return busy_; }

 private:
  ForwardCost cost_;
  const AcceptanceProcess& acceptance_;
  double busy_ = 0;
};

}  // namespace outrider
