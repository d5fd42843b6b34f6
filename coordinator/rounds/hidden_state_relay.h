// Relays hidden states of the target to draft workers with a head (HiddenStateRows), or announcements of rows
// that go from device to device. Chooses the rows that a plan asks for, and the receiver of each result.
// Independent of drafts and verdicts. Stores only the number of rows sent to each worker, since the target
// can send every row again.
#pragma once

#include <vector>

#include "coordinator/rounds/target_group.h"
#include "coordinator/rounds/worker_pool.h"
#include "coordinator/scheduler/request_table.h"

namespace outrider {

class HiddenStateRelay {
 public:
  HiddenStateRelay(const ProtocolOptions& options, const TargetGroup& target, const WorkerPool& pool,
                   Totals& totals)
      : options_(options), target_(target), pool_(pool), totals_(totals) {}

  // Whether a round waits for a draft whose worker waits for rows that the target has. Then an idle target is
  // asked for the rows, even without other work.
  bool is_awaited(const RequestMap& requests) const;
  // Adds the rows that workers lack to a plan that is sent, up to the state after its pass.
  void ask(const RequestMap& requests, StepPlan& step);
  // Checks that a result has only the requested rows, or fewer.
  Status check(const StepResult& result) const;
  // Passes on the rows of a result whose verdicts were applied. A round whose worker waits for rows that the
  // target does not have continues without its draft.
  void pass_on(StepResult& result, RequestTable& requests, Turn& turn);
  // Undoes the sending of rows that a worker's queue had no room for.
  static void take_back(const HiddenStateRows& rows, LiveRequest& live) {
    live.link.hidden_states = std::min(live.link.hidden_states, rows.first.value());
  }

 private:
  bool reads_hidden_states(const LiveRequest& live) const;
  bool is_here_for(const HiddenStateRows& rows, const LiveRequest& live) const;
  bool is_worth_rows(const LiveRequest& live) const;
  // The number of tokens with keys and values after the outstanding plan, or now.
  int32_t told_behind(const LiveRequest& live) const;

  const ProtocolOptions& options_;
  const TargetGroup& target_;
  const WorkerPool& pool_;
  Totals& totals_;
  std::vector<HiddenStateRequest> asked_;  // in the outstanding plan
};

}  // namespace outrider
