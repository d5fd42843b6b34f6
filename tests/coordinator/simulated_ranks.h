// The ranks of the simulated target, as far as dense q in slices concerns them: the production inboxes behind
// doors in memory, and the demand that what they agree on is what the drafter drew from.
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

  // What a worker hands over for `rank`, before anything can happen to it; then what arrives at its door.
  void hand_over(int rank, const QSlice& slice);
  bool door_is_full(int rank) const;
  void arrive(int rank, const QSlice& slice);

  void begin(const StepPlan& plan);
  // Every rank reads its door as far as it must. True: none misses anything.
  bool collect(std::span<const PlanEntry> entries);
  // All ranks add up. The sequences whose drafts they give up.
  std::set<SequenceId> gather(std::span<const PlanEntry> entries);

  int64_t used() const { return used_; }               // drafts that were verified by their slices
  const std::string& error() const { return error_; }  // of the first violation

 private:
  class Door;
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
