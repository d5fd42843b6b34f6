// Rows of the target's states pass here on their way to draft workers that hold a head (StateRows), or news
// of those that go from device to device: what a plan asks the target for, and whose what has come is. Knows
// no draft and no verdict; nothing is kept here but how many rows each worker was sent, since the target can
// tell every row again.
#pragma once

#include <vector>

#include "coordinator/request_table.h"
#include "coordinator/target_group.h"
#include "coordinator/worker_pool.h"

namespace outrider {

class StateRelay {
 public:
  StateRelay(const ProtocolOptions& options, const TargetGroup& target, const WorkerPool& pool,
             Totals& totals)
      : options_(options), target_(target), pool_(pool), totals_(totals) {}

  // A round waits for its draft, and its worker for rows that the target has: the idle target is asked for
  // them, even if there is nothing else to do.
  bool is_awaited(const RequestMap& requests) const;
  // Adds to a plan what workers lack, as of behind its pass. The plan is out.
  void ask(const RequestMap& requests, StepPlan& step);
  // Whether a result has what was asked for, or less.
  Status check(const StepResult& result) const;
  // Hands on what came, in a result whose verdicts were applied. A round whose worker waits for rows that the
  // target does not have goes on without its draft.
  void pass_on(StepResult& result, RequestTable& requests, Turn& turn);
  // A worker's queue had no room for them.
  static void take_back(const StateRows& rows, LiveRequest& live) {
    live.link.states = std::min(live.link.states, rows.first.value());
  }

 private:
  bool reads_states(const LiveRequest& live) const;
  bool is_here_for(const StateRows& rows, const LiveRequest& live) const;
  bool is_worth_rows(const LiveRequest& live) const;
  // Of the tokens that have keys and values behind the plan that is out, or now.
  int32_t told_behind(const LiveRequest& live) const;

  const ProtocolOptions& options_;
  const TargetGroup& target_;
  const WorkerPool& pool_;
  Totals& totals_;
  std::vector<StateAsk> asked_;  // by the plan that is out
};

}  // namespace outrider
