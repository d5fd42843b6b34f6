// A target group that answers StepPlans without a model: verdicts come from an acceptance process, times from
// a cost. With a head it drafts after its passes, as TargetWorker::draft_next does.
#pragma once

#include <memory>

#include "cluster/acceptance_process.h"
#include "cluster/simulation/forward_cost.h"
#include "comm/messages/verifying.h"

namespace outrider {

class SimulatedTarget {
 public:
  // `head`: cost of a pass of the drafter that is part of the group; null: there is none.
  SimulatedTarget(const ForwardCost& cost, const AcceptanceProcess& acceptance,
                  const ForwardCost* head = nullptr);
  SimulatedTarget(SimulatedTarget&&) noexcept;
  ~SimulatedTarget();

  // forward_ns and draft_ns of the result are the durations of the pass and the drafts.
  StepResult verify(const StepPlan& plan);
  double busy_seconds() const { return busy_; }
  double drafting_seconds() const;

 private:
  class Head;

  ForwardCost cost_;
  const AcceptanceProcess& acceptance_;
  std::unique_ptr<Head> head_;
  double busy_ = 0;
};

}  // namespace outrider
