// What rounds cost with the drafters that are there: one model over all of them, and one for each kind that
// ever joined. Told of passes and drafts; never asked what to do about them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "coordinator/cost_model.h"
#include "coordinator/settled_passes.h"
#include "coordinator/step_planner.h"

namespace outrider {

class DrafterCosts {
 public:
  // The kind a worker of this fingerprint counts as; from now on it has costs of its own.
  DrafterKind add_kind(uint64_t fingerprint);
  // CostModel::expect_rows, of every kind there is and will be.
  void expect_rows(double price);

  const CostModel& all() const { return all_; }
  // One kind alone is all there is to know.
  const CostModel& of(DrafterKind kind) const {
    return by_kind_.size() > 1 && kind != 0 ? by_kind_.at(kind) : all_;
  }

  // `beside_shadow`: it may have waited for drafts that were made on its own devices.
  void observe_verify(int32_t rows, int64_t context, double seconds, bool beside_shadow);
  // How long the drafts of a plan were waited for. Rounds that met a timeout or read a prompt tell nothing
  // about links and workers.
  void observe_drafts(std::span<const PlannedEntry> planned);
  // The drafts that a target made beside its pass: the longest and all of them together, in tokens.
  void observe_own(DrafterKind kind, int32_t longest, int32_t total, double seconds);
  // One is asked for.
  void shadow_begins() { longest_pass_ = 0; }
  // Any pass, also one that reads prompts.
  void pass_over(double seconds) { longest_pass_ = std::max(longest_pass_, seconds); }
  // Shadow drafts that one worker was asked for at once.
  void observe_shadow(DrafterKind kind, const ShadowDrafting& shadow);
  // A worker read so many tokens before it drafted.
  void observe_reading(DrafterKind kind, int32_t tokens, double seconds);

 private:
  void observe_drafts(std::span<const PlannedEntry> planned, std::optional<DrafterKind> kind,
                      CostModel& cost);
  void observe_reading(std::span<const PlannedEntry> planned);

  SettledPasses passes_;
  double row_price_ = kUnknownPrice;
  double longest_pass_ = 0;  // since the newest shadow draft was asked for
  CostModel all_;
  std::map<DrafterKind, CostModel> by_kind_;     // bounded
  std::vector<std::pair<PeerId, double>> busy_;  // scratch: seconds of one plan, by worker
};

}  // namespace outrider
