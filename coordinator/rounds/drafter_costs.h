// Cost models of rounds with the present drafters: one model over all drafters, and one for each kind that
// ever joined. Fed with passes and drafts.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "coordinator/costs/cost_model.h"
#include "coordinator/costs/settled_passes.h"
#include "coordinator/costs/worker_cost.h"
#include "coordinator/gamma/acceptance.h"
#include "coordinator/scheduler/step_planner.h"

namespace outrider {

// Cost and acceptance of the drafts of one kind of worker. They do not depend on the size of the pool.
struct WorkerRecord {
  WorkerCost cost;
  AcceptanceEwma acceptance{0.7, 10, 0.99};
};

class DrafterCosts {
 public:
  // The kind of a worker with this fingerprint; from now on it has a cost model of its own.
  // `measured`: by the worker, before it joined. `of_blocks`: Hello::drafts_blocks.
  DrafterKind add_kind(uint64_t fingerprint, const PassTimes& measured = {}, bool of_blocks = false);
  // CostModel::expect_passes for every present and future kind.
  void expect_passes(const PassTimes& measured);

  const CostModel& all() const { return all_; }
  // A single kind uses the model over all drafters.
  const CostModel& of(DrafterKind kind) const {
    return by_kind_.size() > 1 && kind != 0 ? by_kind_.at(kind) : all_;
  }

  const WorkerRecord& worker(DrafterKind kind) const { return workers_.at(kind); }
  // The kind whose drafts were measured last; 0: none yet.
  DrafterKind newest_kind() const { return newest_kind_; }
  // Tests of a worker's draft. A drafter that was asked and found nothing has failed one.
  void observe_acceptance(DrafterKind kind, int32_t drafted, int32_t accepted) {
    workers_.at(kind).acceptance.update(drafted, accepted);
    newest_kind_ = kind;
  }

  // `beside_probe_draft`: a probe draft was under way; the pass may have waited for drafts on the target's
  // own devices.
  void observe_verify(int32_t rows, int64_t context, double seconds, bool beside_probe_draft);
  // Takes the waits for the drafts of a plan. Rounds with a timeout or a prefill are no measure of links and
  // workers.
  void observe_drafts(std::span<const PlannedEntry> planned);
  // The drafts that a target made beside its pass: tokens of the longest one and of all drafts.
  void observe_own(DrafterKind kind, int32_t longest, int32_t total, double seconds);
  // A probe draft is requested.
  void probe_draft_begins() { longest_pass_ = 0; }
  // Also called for passes with prefill rows.
  void pass_over(double seconds) { longest_pass_ = std::max(longest_pass_, seconds); }
  // Probe drafts that one worker was asked for at once.
  void observe_probe_draft(DrafterKind kind, const ProbeDrafting& probe_draft);
  // A worker prefilled this many tokens before it drafted.
  void observe_prefill(DrafterKind kind, int32_t tokens, double seconds);

 private:
  void observe_drafts(std::span<const PlannedEntry> planned, std::optional<DrafterKind> kind,
                      CostModel& cost);
  void observe_prefill(std::span<const PlannedEntry> planned);
  void observe_workers(std::span<const PlannedEntry> planned);

  SettledPasses passes_;
  PassTimes pass_times_;     // of the target
  double longest_pass_ = 0;  // since the newest probe draft was requested
  CostModel all_;
  std::map<DrafterKind, CostModel> by_kind_;     // bounded
  std::map<DrafterKind, WorkerRecord> workers_;  // of the same kinds
  DrafterKind newest_kind_ = 0;
  std::vector<std::pair<PeerId, double>> busy_;  // scratch: seconds of one plan, by worker
};

}  // namespace outrider
