// Drafts that a target makes beside its passes, for the rounds behind them, and where there is a choice,
// whether it makes them or a worker does (coordinator/protocol.md).
#pragma once

#include "coordinator/draft_terms.h"
#include "coordinator/request_table.h"
#include "coordinator/target_group.h"
#include "coordinator/worker_pool.h"

namespace outrider {

// All outlive it.
class OwnDrafts {
 public:
  OwnDrafts(const ProtocolOptions& options, TargetGroup& target, const WorkerPool& pool, Totals& totals,
            DraftTerms& terms)
      : options_(options), target_(target), pool_(pool), totals_(totals), terms_(terms) {}

  // Where the drafts of the rounds behind a plan will be made, if there is a choice.
  void choose_place(const OutstandingPlan& plan, int32_t batch_size, Clock::time_point now);
  // The target is asked, with the plan that has this entry, for the draft of the round behind it: how long is
  // decided by rounds that are over. Not where a worker is to draft.
  void ask(LiveRequest& live, int32_t batch_size, PlanEntry& entry, Clock::time_point now);
  // What it answered, in a result whose verdicts were applied. `frame_bytes`: of the result.
  void take(Draft& draft, size_t frame_bytes, RequestTable& requests);
  // The round that it drafted for begins, and goes on without a draft if there is none.
  void begin(LiveRequest& live, Turn& turn);

 private:
  const ProtocolOptions& options_;
  TargetGroup& target_;
  const WorkerPool& pool_;
  Totals& totals_;
  DraftTerms& terms_;
};

}  // namespace outrider
