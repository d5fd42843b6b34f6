// The ranks of the simulated target, reduced to dense q in slices: the production inboxes behind in-memory
// endpoints, and a check that the verified q equals the q that the drafter drew from.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "target_worker/slice_inbox.h"

namespace outrider {

class SimulatedRanks {
 public:
  SimulatedRanks(int count, int32_t sequences, int32_t rows);
  ~SimulatedRanks();
  int count() const { return static_cast<int>(ranks_.size()); }

  // hand_over(): a worker sends a slice to `rank`, before any fault can strike. arrive(): the slice reaches
  // the rank's endpoint.
  void hand_over(int rank, const QSlice& slice);
  bool endpoint_is_full(int rank) const;
  void arrive(int rank, const QSlice& slice);

  void begin(const StepPlan& plan);
  // Every rank receives from its endpoint until it has the slices of `entries`. True if no rank misses a
  // slice.
  bool collect(std::span<const PlanEntry> entries);
  // All ranks combine their results. Returns the sequences whose drafts they drop.
  std::set<SequenceId> gather(std::span<const PlanEntry> entries);

  int64_t used() const { return used_; }               // drafts that were verified by their slices
  const std::string& error() const { return error_; }  // of the first violation

 private:
  class RankEndpoint;
  struct Rank;
  using DraftName = std::tuple<SequenceId, Round, Generation>;
  void check(bool condition, const char* what);
  void check_rows(const PlanEntry& entry, size_t rank, const SlicedQ& q);

  std::vector<std::unique_ptr<Rank>> ranks_;
  std::map<DraftName, std::map<int, QSlice>> drawn_;  // by rank
  int64_t used_ = 0;
  std::string error_;
};

}  // namespace outrider
