#include "coordinator/prompt_handoffs.h"

#include <algorithm>

namespace outrider {
namespace {

constexpr auto kBlock = static_cast<int32_t>(kBlockTokens);

int32_t whole_blocks(int32_t tokens) { return tokens / kBlock * kBlock; }

}  // namespace

Status PromptHandoffs::check_role(const Hello& hello, const ServingGroup& place) const {
  const auto others = std::count_if(groups_.begin(), groups_.end(), [&](const ServingGroup& group) {
    return &group != &place && group.target.is_here() && group.target.only_prefills() == hello.only_prefills;
  });
  const int32_t most =
      hello.only_prefills ? options_.prefill_groups : options_.target_groups - options_.prefill_groups;
  if (others < most) return {};
  return invalid_argument(hello.only_prefills
                              ? fmt::format("it only prefills, and this run has {} such groups", most)
                              : fmt::format("all {} target groups that decode have joined", most));
}

// The last token is always computed where the text goes on.
int32_t PromptHandoffs::part_for(const LiveRequest& live) const {
  return whole_blocks(live.sequence.prompt_length() - 1);
}

bool PromptHandoffs::should_prefill_apart(const LiveRequest& live) const {
  if (options_.prefill_groups == 0 || live.request.prompt_logprobs >= 0) return false;
  bool any_prefills = false, any_takes = false;
  int32_t known = 0;
  for (const ServingGroup& group : groups_) {
    if (!group.target.is_here()) continue;
    any_prefills |= group.target.only_prefills();
    any_takes |= group.target.takes_blocks();
    if (!group.target.only_prefills()) known = std::max(known, TargetGroups::known_tokens(live, group));
  }
  return any_prefills && any_takes && part_for(live) - known >= std::max(options_.min_handoff_tokens, kBlock);
}

void PromptHandoffs::begin(LiveRequest& live) const { live.handoff = {.prefill_to = part_for(live)}; }

void PromptHandoffs::choose(const std::function<void(const ServingGroup&)>& mark_dirty,
                            Clock::time_point now) {
  if (options_.prefill_groups == 0) return;
  const bool any_takes = std::any_of(groups_.begin(), groups_.end(), [](const ServingGroup& group) {
    return group.target.is_here() && group.target.takes_blocks();
  });
  for (ServingGroup& from : groups_) {
    if (!from.target.is_here() || !from.target.only_prefills() || from.target.planner.outstanding()) continue;
    for (LiveRequest* live : from.requests.in_state(RequestState::kPrefill)) {
      if (!live->has_prefilled() || live->handoff.to >= 0) continue;
      // If every group that took blocks is gone, the prompt is computed again in another one.
      const auto work = any_takes ? TargetGroups::Work::kTakingBlocks : TargetGroups::Work::kDecoding;
      ServingGroup* const to = groups_.best_for(*live, TargetGroups::SeqSlots::kFree, work);
      if (!to) return;
      Handoff& handoff = live->handoff;
      handoff.from = from.target.index;
      handoff.to = to->target.index;
      ++to->target.expected;
      mark_dirty(from);
      if (!any_takes) {
        ++totals_.handoffs_lost;
        continue;
      }
      const PrefixIndex::Match known = to->target.kv.find(*live);
      handoff.transfer = ++last_transfer_;
      handoff.inbox = to->target.hello().block_inbox;
      handoff.end = handoff.prefill_to;
      handoff.first = std::min(whole_blocks(known.length), handoff.end - kBlock);
      handoff.deadline = now + options_.handoff_timeout;
    }
  }
}

void PromptHandoffs::move(ServingGroup& from, const OutstandingPlan& plan,
                          const std::function<void(const ServingGroup&)>& mark_dirty) {
  for (const SequenceId id : plan.handed_over) {
    std::unique_ptr<LiveRequest> live = from.requests.take(id);
    ServingGroup& to = groups_.at(live->handoff.to);
    --to.target.expected;
    live->handoff.prefill_to = 0;
    live->group = to.target.index;
    to.requests.add(std::move(live));
    mark_dirty(to);
  }
}

Status PromptHandoffs::check(const StepResult& result, const OutstandingPlan& plan) const {
  if (result.exported.size() != plan.exports.size())
    return malformed(fmt::format("tells of {} exports of blocks instead of {}", result.exported.size(),
                                 plan.exports.size()));
  if (result.imported.size() != plan.imports.size())
    return malformed(fmt::format("tells of {} imports of blocks instead of {}", result.imported.size(),
                                 plan.imports.size()));
  return {};
}

void PromptHandoffs::settle(const StepResult& result, const OutstandingPlan& plan, Clock::time_point now) {
  for (size_t i = 0; i < plan.exports.size(); ++i) {
    totals_.handoff_bytes += std::max<int64_t>(result.exported[i], 0);
    LiveRequest* const live = groups_.find(plan.exports[i].sequence);
    if (live && live->awaits_blocks() && result.exported[i] <= 0) live->handoff.deadline = now;
  }
  for (size_t i = 0; i < plan.imports.size(); ++i) {
    const auto [live, count] = plan.imports[i];
    if (result.imported[i] != 0) {
      live->sequence.target_prefilled(count);
      live->handoff = {};
      ++totals_.handoffs;
      totals_.handoff_blocks += count / kBlock;
    }
    if (!live->finished()) live->become(RequestState::kPrefill);
  }
}

void PromptHandoffs::give_up(LiveRequest& live) {
  live.handoff = {};
  ++totals_.handoffs_lost;
}

void PromptHandoffs::expire(ServingGroup& group, Clock::time_point now) {
  if (options_.prefill_groups == 0) return;
  for (auto& [id, live] : group.requests.all())
    if (live->state == RequestState::kPrefill && live->awaits_blocks() && now >= live->handoff.deadline)
      give_up(*live);
}

void PromptHandoffs::for_each_deadline(const ServingGroup& group,
                                       const std::function<void(Clock::time_point)>& consider) const {
  if (options_.prefill_groups == 0) return;
  for (const auto& [id, live] : group.requests.all())
    if (live->state == RequestState::kPrefill && live->awaits_blocks()) consider(live->handoff.deadline);
}

void PromptHandoffs::group_lost(const ServingGroup& lost, Clock::time_point now) {
  if (options_.prefill_groups == 0) return;
  for (ServingGroup& group : groups_)
    for (auto& [id, live] : group.requests.all())
      if (live->awaits_blocks() && live->handoff.from == lost.target.index) live->handoff.deadline = now;
  for (auto& [id, live] : lost.requests.all())
    totals_.handoffs_lost += !live->finished() && (lost.target.only_prefills() || live->awaits_blocks());
}

}  // namespace outrider
