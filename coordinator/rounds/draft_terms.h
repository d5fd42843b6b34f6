// The terms of a requested draft: its length, its branching, and the form of its q. Sends nothing.
#pragma once

#include "coordinator/rounds/target_group.h"
#include "coordinator/rounds/worker_pool.h"

namespace outrider {

struct Branching {
  TreeShape tree;
  bool wanted = false;  // as in RoundInFlight
};

// A sequence's share of a pass of the batch with a row for each, and what a further row costs.
struct PassPrices {
  int64_t pass_ns = 0, row_ns = 0;
};

// All outlive it.
class DraftTerms {
 public:
  DraftTerms(const ProtocolOptions& options, TargetGroup& target, const Totals& totals)
      : options_(options), target_(target), totals_(totals) {}

  int32_t gamma_limit(const LiveRequest& live) const;
  int32_t gamma_limit(const LiveRequest& live, const PoolWorker& worker) const;
  GammaContext gamma_context(const LiveRequest& live, const PoolWorker& worker, int32_t batch_size) const;
  // The worker is in the coordinator's process.
  bool is_local(const PoolWorker& worker) const {
    return worker.process() != 0 && worker.process() == options_.process;
  }
  int32_t text_gamma(LiveRequest& live, const PoolWorker& worker, int32_t limit) const;
  PassPrices price_passes(const CostModel& cost, int32_t batch_size, int32_t context) const;
  // Chooses the branching of a draft of this length, by a drafter of this kind, of at most `room` nodes.
  // Records for --speculative-tree auto whether this step branches.
  Branching choose_tree(LiveRequest& live, int32_t gamma, int32_t room, int32_t batch_size, DrafterKind kind);
  int32_t node_limit(int32_t committed) const;
  // Fills the q settings of the Propose.
  void ask_for_q(const LiveRequest& live, const PoolWorker& worker, Propose& message) const;

 private:
  TreeShape priced(const TreeShape& shape, int32_t gamma, int32_t batch_size, DrafterKind kind) const;
  QKind q_kind(const LiveRequest& live, const PoolWorker& worker) const;
  double prefill_seconds(const LiveRequest& live, const PoolWorker& worker) const;
  int32_t remaining(const LiveRequest& live) const;

  const ProtocolOptions& options_;
  TargetGroup& target_;
  const Totals& totals_;
};

}  // namespace outrider
