// The target groups of a coordinator, each with its own state: its requests, both halves of their rounds, its
// plans and its KV cache. Decides which groups may join, and which group runs a request. An entry outlives
// its group: the next group to join takes it over, with its learnt times and costs.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/rounds/draft_rounds.h"
#include "coordinator/rounds/hidden_state_relay.h"
#include "coordinator/rounds/verdicts.h"

namespace outrider {

// The reason why a group cannot join now; it may later.
inline constexpr std::string_view kGroupHasJoined = "a target group has already joined";
inline constexpr std::string_view kGroupsHaveJoined = "target groups have already joined";

struct ServingGroup {
  ServingGroup(const ProtocolOptions& options, int32_t at, WorkerPool& pool, Totals& totals,
               RequestIndex& index)
      : target(options, at),
        requests(index),
        rounds(options, target, pool, totals),
        hidden_states(options, target, pool, totals),
        verdicts(options, target, pool, rounds.probe_drafts(), totals) {}
  ServingGroup(const ServingGroup&) = delete;  // its parts refer to each other
  ServingGroup& operator=(const ServingGroup&) = delete;

  TargetGroup target;
  RequestTable requests;
  DraftRounds rounds;
  HiddenStateRelay hidden_states;
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
  // Groups that only prefill do not count: nothing can be decoded without another.
  bool any_here() const { return any_that_is_here() != nullptr; }
  // The properties on which all connected groups agree, such as the model. Null: none is connected that
  // decodes.
  const ServingGroup* any_that_is_here() const;
  ServingGroup* of(PeerId peer);
  const ServingGroup* of(PeerId peer) const { return const_cast<TargetGroups*>(this)->of(peer); }
  // The entry of a group that says Hello: its own one, or a free one. Null: there is none.
  ServingGroup* place_of(PeerId peer, const Hello& hello);
  // Groups that only prefill are the first ones, as in a layout of ranks.
  bool is_for(const ServingGroup& place, bool only_prefills) const {
    return (place.target.index < options_.prefill_groups) == only_prefills;
  }
  // Why another group of this role may not join.
  std::string no_place_for(bool only_prefills) const;
  // Checks that the texts of a new group would equal those of the connected groups.
  Status check(const Hello& hello, const ServingGroup& place) const;

  // ---- requests
  ServingGroup* of(const LiveRequest& live);  // null: it waits for a slot
  LiveRequest* find(SequenceId id) const;     // null: unknown, or not running
  size_t running() const;
  // The best group for a request: the one with the longest cached beginning of its text, if that saves half
  // of the prefill elsewhere and the group is not much busier than another; else the least busy one.
  enum class SeqSlots { kFree, kAny };  // kFree: only groups that run fewer than they may; null: all are full
  enum class Work { kDecoding, kTakingBlocks, kPrefillOnly };
  // `suits`: only groups for which it is true.
  using Suits = std::function<bool(const ServingGroup&)>;
  ServingGroup* best_for(const LiveRequest& live, SeqSlots seq_slots, Work work = Work::kDecoding,
                         const Suits& suits = nullptr);
  // Tokens of its text that are cached there, or will be soon because another request prefills them.
  static int32_t known_tokens(const LiveRequest& live, const ServingGroup& group);

 private:
  static bool does(const TargetGroup& target, Work work);

  const ProtocolOptions& options_;
  RequestIndex index_;
  std::deque<ServingGroup> groups_;  // the maximal number of groups
};

}  // namespace outrider
