// Drafts that a target makes beside its passes, for the following rounds, and the choice between the target
// and a worker if there is one (coordinator/protocol.md).
#pragma once

#include "coordinator/rounds/draft_terms.h"
#include "coordinator/rounds/target_group.h"
#include "coordinator/rounds/worker_pool.h"
#include "coordinator/scheduler/request_table.h"

namespace outrider {

// All outlive it.
class CoLocatedDrafts {
 public:
  CoLocatedDrafts(const ProtocolOptions& options, TargetGroup& target, const WorkerPool& pool, Totals& totals,
                  DraftTerms& terms)
      : options_(options), target_(target), pool_(pool), totals_(totals), terms_(terms) {}

  // Decides where the drafts of the rounds after a plan are made, if there is a choice.
  void choose_place(const OutstandingPlan& plan, int32_t batch_size, Clock::time_point now);
  // Asks the target, in the plan with this entry, for a draft of the next round; finished rounds decide the
  // length. Does nothing if a worker is to draft.
  void ask(LiveRequest& live, int32_t batch_size, PlanEntry& entry, Clock::time_point now);
  // Takes a draft of the target, in a result whose verdicts were applied. `frame_bytes`: of the result.
  void take(Draft& draft, size_t frame_bytes, RequestTable& requests);
  // Begins the round of that draft, or continues without a draft if there is none.
  void begin(LiveRequest& live, Turn& turn);

 private:
  const ProtocolOptions& options_;
  TargetGroup& target_;
  const WorkerPool& pool_;
  Totals& totals_;
  DraftTerms& terms_;
};

}  // namespace outrider
