// The second half of a round: checks a result, commits and streams its tokens, and learns from it. Never
// chooses drafts or plans.
#pragma once

#include <optional>

#include "coordinator/rounds/probe_drafts.h"
#include "coordinator/rounds/target_group.h"
#include "coordinator/rounds/worker_pool.h"

namespace outrider {

class Verdicts {
 public:
  Verdicts(const ProtocolOptions& options, TargetGroup& target, WorkerPool& pool,
           const ProbeDrafts& probe_drafts, Totals& totals)
      : options_(options), target_(target), pool_(pool), probe_drafts_(probe_drafts), totals_(totals) {}

  // Checks one verdict per sampling entry of the plan, in its order. The target is trusted, but may have
  // bugs.
  Status check(const StepResult& result, const OutstandingPlan& plan) const;
  // Learns from the whole pass, before its verdicts are applied.
  void learn_pass(const StepResult& result, const OutstandingPlan& plan, Clock::time_point now);
  // How the request ends, if it ends; the caller then finishes it. `batch_size`: running sequences.
  // `prefills`: the pass had prefill rows.
  struct End {
    FinishReason reason;
    Status error;
  };
  std::optional<End> apply(const PlannedEntry& entry, Verdict& verdict, const StepResult& result,
                           int32_t batch_size, bool prefills, Turn& turn);
  // Learns from a round whose verdict was applied.
  void learn_round(const PlannedEntry& entry, bool prefills, Clock::time_point now);

 private:
  Status check(const LiveRequest& live, const Verdict& verdict) const;
  Status check(const PlannedEntry& entry, const PromptScores& scores) const;
  Status check(const PositionLogprobs& at, TokenId token, int32_t most) const;
  void note_successors(LiveRequest& live, const Verdict& verdict);
  void lose_draft(LiveRequest& live, bool link_lost);
  std::optional<End> commit(LiveRequest& live, Verdict& verdict, Turn& turn);
  bool ends_request(const LiveRequest& live, TokenId id) const;
  std::optional<End> end_behind(const LiveRequest& live) const;
  void teach(LiveRequest& live, const Verdict& verdict, int32_t emitted, int32_t batch_size,
             Clock::time_point now);
  void count_place(const LiveRequest& live);
  void teach_ranks(LiveRequest& live, const Verdict& verdict);
  void record(const PlannedEntry& entry, const Verdict& verdict, int32_t emitted, const StepResult& result,
              bool prefills, Turn& turn);
  void learn_own_drafts(const StepResult& result, double seconds);
  bool ends_text(TokenId id) const;

  const ProtocolOptions& options_;
  TargetGroup& target_;
  WorkerPool& pool_;
  const ProbeDrafts& probe_drafts_;
  Totals& totals_;
};

}  // namespace outrider
