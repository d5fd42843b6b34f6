// A target group that answers StepPlans without a model: verdicts from an acceptance process, time from a
// cost. With a head it drafts behind its passes, as TargetWorker::draft_next does.
#pragma once

#include <memory>

#include "cluster/acceptance_process.h"
#include "cluster/simulation/forward_cost.h"
#include "comm/messages/verifying.h"

namespace outrider {

class SimulatedTarget {
 public:
  // `head`: what a pass of the drafter costs that is part of the group; null: it has none.
  SimulatedTarget(const ForwardCost& cost, const AcceptanceProcess& acceptance,
                  const ForwardCost* head = nullptr);
  SimulatedTarget(SimulatedTarget&&) noexcept;
  ~SimulatedTarget();

  // The result says in forward_ns and draft_ns how long pass and drafts took.
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
