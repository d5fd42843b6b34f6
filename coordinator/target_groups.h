// The target groups of a coordinator, each with what is decided for it alone: its requests, both halves of
// their rounds, its plans and its KV cache. Decides who may be one of them, and which of them a request runs
// in. A place in the table outlives its group: who joins after a group was lost takes it over, with what was
// learnt there of times and costs.
#pragma once

#include <deque>
#include <string_view>
#include <vector>

#include "coordinator/draft_rounds.h"
#include "coordinator/state_relay.h"
#include "coordinator/verdicts.h"

namespace outrider {

// Why a group finds no place now; it may later.
inline constexpr std::string_view kGroupHasJoined = "a target group has already joined";
inline constexpr std::string_view kGroupsHaveJoined = "target groups have already joined";

struct ServingGroup {
  ServingGroup(const ProtocolOptions& options, int32_t at, WorkerPool& pool, Totals& totals,
               RequestIndex& index)
      : target(options, at),
        requests(index),
        rounds(options, target, pool, totals),
        states(options, target, pool, totals),
        verdicts(options, target, pool, rounds.shadows(), totals) {}
  ServingGroup(const ServingGroup&) = delete;  // its parts refer to each other
  ServingGroup& operator=(const ServingGroup&) = delete;

  TargetGroup target;
  RequestTable requests;
  DraftRounds rounds;
  StateRelay states;
  Verdicts verdicts;
};

class TargetGroups {
 public:
  TargetGroups(const ProtocolOptions& options, WorkerPool& pool, Totals& totals);

  auto begin() { return groups_.begin(); }
  auto end() { return groups_.end(); }
  auto begin() const { return groups_.begin(); }
  auto end() const { return groups_.end(); }
  ServingGroup& first() { return groups_.front(); }
  const ServingGroup& first() const { return groups_.front(); }
  ServingGroup& at(int32_t index) { return groups_[static_cast<size_t>(index)]; }
  const ServingGroup& at(int32_t index) const { return groups_.at(static_cast<size_t>(index)); }

  // ---- membership
  size_t count_here() const;
  bool any_here() const { return any_that_is_here() != nullptr; }
  // What holds for each group that is here, as all must agree: its model, say. Null: none is here.
  const ServingGroup* any_that_is_here() const;
  ServingGroup* of(PeerId peer);
  const ServingGroup* of(PeerId peer) const { return const_cast<TargetGroups*>(this)->of(peer); }
  // Where a group that says hello belongs: its own place, or one that is free. Null: there is none.
  ServingGroup* place_of(PeerId peer, Generation generation);
  // Whether the texts of a new group are those of the groups that are here.
  Status check(const Hello& hello, const ServingGroup& place) const;

  // ---- requests
  ServingGroup* of(const LiveRequest& live);  // null: it waits for a place
  LiveRequest* find(SequenceId id) const;     // null: it runs nowhere
  size_t running() const;
  // Where a request had best run: in the group that has read how its text begins, if that saves half of what
  // has to be read elsewhere and the group is not much busier than another; else in the least busy one.
  enum class Places { kFree, kAny };  // kFree: only groups that run fewer than they may; null: all are full
  ServingGroup* best_for(const LiveRequest& live, Places places);

 private:
  RequestIndex index_;
  std::deque<ServingGroup> groups_;  // as many as may join
};

}  // namespace outrider
