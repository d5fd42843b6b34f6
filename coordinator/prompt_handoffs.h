// Prompts that one target group prefills and another decodes. Groups that only prefill compute the whole
// blocks of long prompts; then their ranks send these blocks to a group that decodes, which takes them in
// like a chunk that it has prefilled, and computes the rest. A text has the same bits wherever its prompt was
// computed, so whatever is lost (a group, a block, the time) costs time only: the group that decodes computes
// what it lacks.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <utility>

#include "coordinator/rounds/turn.h"
#include "coordinator/target_groups.h"

namespace outrider {

class PromptHandoffs {
 public:
  PromptHandoffs(const ProtocolOptions& options, TargetGroups& groups, Totals& totals)
      : options_(options), groups_(groups), totals_(totals) {}

  // The group in which a waiting request begins, if one has a place. Its whole blocks are computed in a group
  // that only prefills, if enough of the prompt is not cached where it would be decoded. If all places of
  // such groups are taken, they are computed where the text goes on.
  ServingGroup* place_for(const LiveRequest& live) const;
  // A request begins in such a group.
  void begin(LiveRequest& live) const;

  // Decides where prefilled prompts go: to groups with a free place and room for their blocks. They keep the
  // place until their groups are idle and can hand them over; calls `mark_dirty` for each group whose next
  // plan does. `queued`: the next request of the queue, which comes first if it has a higher priority.
  void choose(const std::function<void(const ServingGroup&)>& mark_dirty, const LiveRequest* queued,
              Clock::time_point now);
  // Prompts of groups that have not answered for long go on in groups that decode, in their order, as places
  // become free; calls `mark_dirty` for these groups. `queued`: as of choose().
  void leave_late_groups(const std::function<void(const ServingGroup&)>& mark_dirty,
                         const LiveRequest* queued);
  // After the plan that sends their blocks: they go on in their next groups, which are marked.
  void move(ServingGroup& from, const OutstandingPlan& plan,
            const std::function<void(const ServingGroup&)>& mark_dirty);

  // The result of the plan that sent blocks, and of one that took some in.
  Status check(const StepResult& result, const OutstandingPlan& plan) const;
  void settle(const StepResult& result, const OutstandingPlan& plan, Clock::time_point now);

  // Finds groups that only prefill and are late with an answer.
  void find_late(ServingGroup& group, Turn& turn) const;
  // Gives up blocks that are overdue. A group that only prefills gets no requests for a while if this happens
  // to several prompts in a row on their way to the same group.
  void expire(ServingGroup& group, Turn& turn);
  void for_each_deadline(const ServingGroup& group,
                         const std::function<void(Clock::time_point)>& consider) const;
  // A group was lost, before its requests move: blocks that it sent may never come.
  void group_lost(const ServingGroup& group, Clock::time_point now);

 private:
  int32_t part_for(const LiveRequest& live) const;
  bool should_prefill_apart(const LiveRequest& live) const;
  ServingGroup* place_apart(const LiveRequest& live) const;
  ServingGroup* place_to_decode(const LiveRequest& live) const;
  std::vector<LiveRequest*> in_order(bool of_late_groups) const;
  static bool has_room(const LiveRequest& live, const ServingGroup& group);
  ServingGroup* keep_place(const LiveRequest& live, bool any_takes);
  void decide(LiveRequest& live, const ServingGroup& to);
  void give_up(LiveRequest& live, Turn& turn);

  const ProtocolOptions& options_;
  TargetGroups& groups_;
  Totals& totals_;
  uint64_t last_transfer_ = 0;
  // From one group to another, since the last prompt that arrived.
  struct Way {
    int32_t failures = 0;
    bool told = false;
  };
  std::map<std::pair<int32_t, int32_t>, Way> ways_;
};

}  // namespace outrider
