// Evaluates probe drafts, which no round waited for: their cost, and under match rules how many of their
// tokens match the text. Never puts a token into a plan.
#pragma once

#include <optional>

#include "coordinator/rounds/drafter_costs.h"
#include "coordinator/rounds/pool_worker.h"
#include "coordinator/rounds/turn.h"
#include "coordinator/scheduler/request_table.h"

namespace outrider {

class ProbeDrafts {
 public:
  ProbeDrafts(const ProtocolOptions& options, DrafterCosts& costs) : options_(options), costs_(costs) {}

  // Under match rules a probe draft can be compared with the text: a round accepts the tokens that the target
  // writes.
  static bool tests(const LiveRequest& live) { return is_match_rule(live.request.sampling.rule); }
  // Takes the draft that live.link.probe_draft waits for, after its checks.
  void take(LiveRequest& live, PoolWorker& worker, Draft& draft, const RequestMap& requests,
            Clock::time_point now);
  // Compares the probe draft with the text; called whenever the text has grown.
  void compare(LiveRequest& live) const;

 private:
  void learn_costs(const LiveRequest& live, PoolWorker& worker, const Draft& draft, Clock::duration waited,
                   const RequestMap& requests);
  std::optional<int32_t> accepted_of(const ProbeDraft& probe_draft, const Sequence& sequence) const;

  const ProtocolOptions& options_;
  DrafterCosts& costs_;
};

}  // namespace outrider
