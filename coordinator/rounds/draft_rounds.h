// The first half of a round: requests a draft from the worker, then takes it or continues without it. Never
// chooses the worker, and never uses verdicts.
#pragma once

#include "coordinator/rounds/co_located_drafts.h"
#include "coordinator/rounds/draft_check.h"
#include "coordinator/rounds/draft_terms.h"
#include "coordinator/rounds/probe_drafts.h"
#include "coordinator/rounds/target_group.h"
#include "coordinator/rounds/worker_pool.h"

namespace outrider {

class DraftRounds {
 public:
  DraftRounds(const ProtocolOptions& options, TargetGroup& target, WorkerPool& pool, Totals& totals)
      : options_(options),
        target_(target),
        pool_(pool),
        totals_(totals),
        terms_(options, target, totals),
        own_(options, target, pool, totals, terms_),
        probe_drafts_(options, target.costs) {}

  // Begins a round of an idle sequence. Afterwards the sequence is drafting, or ready without a draft.
  // `batch_size`: the number of running sequences.
  void begin(LiveRequest& live, int32_t batch_size, Turn& turn);
  // Repeats every Propose whose Draft is overdue.
  void repeat_overdue(RequestMap& requests, Turn& turn);
  // Takes a Draft from any peer. `frame_bytes`: of its frame; 0: it came without one.
  void take(PeerId peer, Draft& draft, size_t frame_bytes, RequestTable& requests, Turn& turn);
  // Takes a worker's report of the state it holds. If that is a prefix of ours, the worker catches up from
  // there; else, or if it never got the Open, it starts afresh.
  void take(PeerId peer, const Resync& message, RequestTable& requests, Turn& turn);
  // Continues rounds without drafts whose deadline has passed.
  void expire(RequestMap& requests, Turn& turn);
  // Calls `consider` with every time at which one of the above has something to do.
  template <class Consider>
  void for_each_deadline(const RequestMap& requests, Consider consider) const {
    for (const auto& [id, live] : requests) {
      if (live->link.probe_draft && !live->link.probe_draft->ids) consider(live->link.probe_draft->deadline);
      if (live->awaits_draft() && live->link.proposal.repeat_after.count() > 0)
        consider(live->link.proposal.repeat_at);
      if (live->state != RequestState::kDrafting) continue;
      consider(live->round.draft_deadline);
      if (!target_.planner.outstanding()) consider(live->round.batch_deadline);
    }
  }

  CoLocatedDrafts& own() { return own_; }
  const ProbeDrafts& probe_drafts() const { return probe_drafts_; }

 private:
  void rehearse(LiveRequest& live, Turn& turn);
  bool prefills_along(const LiveRequest& live, const PoolWorker& worker) const;

  void ask(LiveRequest& live, Turn& turn);
  void ask_aside(LiveRequest& live, int32_t gamma, Turn& turn);
  void propose(LiveRequest& live, int32_t gamma, Pipeline pipeline, Turn& turn);
  Clock::duration prefill_time(const LiveRequest& live) const;
  Clock::duration repeat_time(const PoolWorker& worker, int32_t gamma) const;
  Clock::duration expected_prefill(const PoolWorker& worker, int32_t unread) const;

  std::optional<DropReason> why_unusable(const LiveRequest& live, const Draft& draft,
                                         size_t frame_bytes) const;
  void accept(LiveRequest& live, PoolWorker& worker, Draft& draft, size_t frame_bytes, Turn& turn);
  void take_probe_draft(LiveRequest& live, PoolWorker& worker, Draft& draft, const RequestMap& requests,
                        Turn& turn);
  void missed(PoolWorker& worker, Turn& turn) {
    pool_.missed(worker, target_.times.draft_timeout(), turn.now());
  }

  const ProtocolOptions& options_;
  TargetGroup& target_;
  WorkerPool& pool_;
  Totals& totals_;
  DraftTerms terms_;
  CoLocatedDrafts own_;
  PassPrices prices_;  // of the newest round
  ProbeDrafts probe_drafts_;
};

}  // namespace outrider
