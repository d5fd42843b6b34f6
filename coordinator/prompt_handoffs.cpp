#include "coordinator/prompt_handoffs.h"

#include <algorithm>
#include <utility>

namespace outrider {
namespace {

constexpr auto kBlock = static_cast<int32_t>(kBlockTokens);

constexpr int64_t kMostBlockBytes = int64_t{1} << 30;  // of all ranks

// After this many prompts in a row whose blocks did not arrive, their group rests. The next failure suffices
// for the next rest.
constexpr int32_t kMostFailures = 3;
constexpr std::chrono::seconds kRest{30};

int32_t whole_blocks(int32_t tokens) { return tokens / kBlock * kBlock; }

}  // namespace

// The last token is always computed where the text goes on.
int32_t PromptHandoffs::part_for(const LiveRequest& live) const {
  return whole_blocks(live.sequence.prompt_length() - 1);
}

// Whether there is a group that only prefills, and enough of the prompt is not cached where it would be
// decoded.
bool PromptHandoffs::should_prefill_apart(const LiveRequest& live) const {
  if (options_.prefill_groups == 0 || live.request.prompt_logprobs >= 0) return false;
  bool any_prefills = false, any_takes = false;
  int32_t known = 0;
  for (const ServingGroup& group : groups_) {
    if (!group.target.is_here()) continue;
    any_prefills |= group.target.prefills_for_others();
    any_takes |= group.target.takes_blocks();
    if (!group.target.only_prefills()) known = std::max(known, TargetGroups::known_tokens(live, group));
  }
  return any_prefills && any_takes && part_for(live) - known >= std::max(options_.min_handoff_tokens, kBlock);
}

ServingGroup* PromptHandoffs::place_apart(const LiveRequest& live) const {
  if (!should_prefill_apart(live)) return nullptr;
  return groups_.best_for(live, TargetGroups::SeqSlots::kFree, TargetGroups::Work::kPrefillOnly);
}

ServingGroup* PromptHandoffs::place_for(const LiveRequest& live) const {
  ServingGroup* const apart = place_apart(live);
  return apart ? apart : place_to_decode(live);
}

// Prefilled prompts that have a place in a group keep the room for their blocks.
ServingGroup* PromptHandoffs::place_to_decode(const LiveRequest& live) const {
  const auto leaves_room = [&](const ServingGroup& group) {
    return group.target.expected == 0 || has_room(live, group);
  };
  return groups_.best_for(live, TargetGroups::SeqSlots::kFree, TargetGroups::Work::kDecoding, leaves_room);
}

void PromptHandoffs::begin(LiveRequest& live) const { live.handoff = {.prefill_to = part_for(live)}; }

// Prompts of groups that only prefill, in the order in which they get places: all of late groups, or those of
// the others whose part is done.
std::vector<LiveRequest*> PromptHandoffs::in_order(bool of_late_groups) const {
  std::vector<LiveRequest*> found;
  for (const ServingGroup& group : groups_) {
    if (!group.target.is_here() || !group.target.only_prefills() || group.target.is_late != of_late_groups)
      continue;
    for (const auto& [id, live] : group.requests.all())
      if (of_late_groups ? live->running() : live->state == RequestState::kPrefill && live->has_prefilled())
        found.push_back(live.get());
  }
  std::sort(found.begin(), found.end(), [this](const LiveRequest* a, const LiveRequest* b) {
    return std::pair(options_.priority_of(a->request), a->id()) <
           std::pair(options_.priority_of(b->request), b->id());
  });
  return found;
}

// Beside all that waits there for blocks.
bool PromptHandoffs::has_room(const LiveRequest& live, const ServingGroup& group) {
  int64_t before = group.target.expected_blocks;
  for (const auto& [id, other] : group.requests.all())
    if (other->running() && !other->sequence.target.open)
      before += kv_blocks_for(other->sequence.committed());
  return group.target.kv.has_room(live, before);
}

// Null: there is none, or no room for its blocks. Then no later request takes what becomes free.
ServingGroup* PromptHandoffs::keep_place(const LiveRequest& live, bool any_takes) {
  using enum TargetGroups::SeqSlots;
  if (!any_takes) return groups_.best_for(live, kFree);
  const auto has_room = [&](const ServingGroup& group) { return PromptHandoffs::has_room(live, group); };
  constexpr auto kWork = TargetGroups::Work::kTakingBlocks;
  if (ServingGroup* const to = groups_.best_for(live, kFree, kWork, has_room)) return to;
  if (ServingGroup* const full = groups_.best_for(live, kFree, kWork)) full->target.room_is_awaited = true;
  return nullptr;
}

void PromptHandoffs::choose(const std::function<void(const ServingGroup&)>& mark_dirty,
                            const LiveRequest* queued, Clock::time_point now) {
  if (options_.prefill_groups == 0) return;
  bool any_takes = false;
  for (ServingGroup& group : groups_) {
    if (now >= group.target.rests_until) group.target.rests_until.reset();
    group.target.expected = 0;
    group.target.expected_blocks = 0;
    group.target.room_is_awaited = false;
    any_takes |= group.target.is_here() && group.target.takes_blocks();
  }
  const auto found = in_order(/*of_late_groups=*/false);
  const bool queued_decodes = options_.by_priority && queued && !found.empty() && !place_apart(*queued);
  for (LiveRequest* live : found) {
    const bool is_decided = live->handoff.to >= 0;
    if (!is_decided && queued_decodes &&
        options_.priority_of(queued->request) < options_.priority_of(live->request))
      continue;
    ServingGroup* const to = is_decided ? &groups_.at(live->handoff.to) : keep_place(*live, any_takes);
    if (!to) continue;
    ++to->target.expected;
    to->target.expected_blocks += kv_blocks_for(live->sequence.committed());
    const ServingGroup& from = *groups_.of(*live);
    if (is_decided || from.target.planner.outstanding()) continue;
    decide(*live, *to);
    mark_dirty(from);
  }
}

// If every group that took blocks is gone, the prompt is computed again in another one.
void PromptHandoffs::decide(LiveRequest& live, const ServingGroup& to) {
  Handoff& handoff = live.handoff;
  handoff.from = live.group;
  handoff.to = to.target.index;
  if (!to.target.takes_blocks()) {
    ++totals_.handoffs_lost;
    return;
  }
  handoff.transfer = ++last_transfer_;
  handoff.inbox = to.target.hello().block_inbox;
  handoff.end = handoff.prefill_to;
  handoff.first = std::min(whole_blocks(to.target.kv.find(live).length), handoff.end - kBlock);
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

void PromptHandoffs::leave_late_groups(const std::function<void(const ServingGroup&)>& mark_dirty,
                                       const LiveRequest* queued) {
  if (options_.prefill_groups == 0) return;
  const bool is_queued_first = options_.by_priority && queued;
  for (LiveRequest* const late : in_order(/*of_late_groups=*/true)) {
    if (is_queued_first && options_.priority_of(queued->request) < options_.priority_of(late->request))
      return;
    ServingGroup* const to = place_to_decode(*late);
    if (!to) return;
    auto live = groups_.of(*late)->requests.take_from_late(late->id());
    live->group = to->target.index;
    to->requests.add(std::move(live));
    ++totals_.handoffs_lost;
    mark_dirty(*to);
  }
}

Status PromptHandoffs::check(const StepResult& result, const OutstandingPlan& plan) const {
  if (result.exported.size() != plan.exports.size())
    return malformed(fmt::format("tells of {} exports of blocks instead of {}", result.exported.size(),
                                 plan.exports.size()));
  if (result.imported.size() != plan.imports.size())
    return malformed(fmt::format("tells of {} imports of blocks instead of {}", result.imported.size(),
                                 plan.imports.size()));
  for (size_t i = 0; i < plan.exports.size(); ++i) {
    const int64_t most = plan.exports[i].count / kBlock * kMostBlockBytes;
    if (result.exported[i] < 0 || result.exported[i] > most)
      return malformed(fmt::format("exported is {}, not 0 to {}", result.exported[i], most));
  }
  return {};
}

void PromptHandoffs::settle(const StepResult& result, const OutstandingPlan& plan, Clock::time_point now) {
  for (size_t i = 0; i < plan.exports.size(); ++i) {
    totals_.handoff_bytes += result.exported[i];
    LiveRequest* const live = groups_.find(plan.exports[i].sequence);
    if (live && live->awaits_blocks() && result.exported[i] == 0) live->handoff.deadline = now;
  }
  for (size_t i = 0; i < plan.imports.size(); ++i) {
    const auto [live, count] = plan.imports[i];
    if (result.imported[i] != 0) {
      live->sequence.target_prefilled(count);
      ways_.erase({live->handoff.from, live->handoff.to});
      live->handoff = {};
      ++totals_.handoffs;
      totals_.handoff_blocks += count / kBlock;
    }
    if (!live->finished()) live->become(RequestState::kPrefill);
  }
}

void PromptHandoffs::give_up(LiveRequest& live, Turn& turn) {
  const int32_t from = live.handoff.from, to = live.handoff.to;
  live.handoff = {};
  ++totals_.handoffs_lost;
  TargetGroup& sender = groups_.at(from).target;
  if (!sender.is_here()) return;  // that is why
  Way& way = ways_[{from, to}];
  if (++way.failures < kMostFailures) return;
  sender.rests_until = turn.now() + kRest;
  if (std::exchange(way.told, true)) return;
  turn.add(MemberChange{
      .kind = MemberChange::Kind::kRests,
      .peer = *sender.peer(),
      .group = from,
      .about = fmt::format("the blocks of {} prompts in a row did not arrive at target group {}; "
                           "prompts are prefilled where they are decoded, and every {} s it is "
                           "tried again",
                           way.failures, to, kRest.count()),
      .only_prefills = true});
}

namespace {

// From what the group measured before it joined, until prompts were measured.
Clock::duration expected_pass(const TargetGroup& target, int32_t rows) {
  if (const auto measured = target.times.prefill(rows); measured.count() > 0) return measured;
  const PassTimes& told = target.hello().pass_times;
  if (told.by_rows.empty()) return std::chrono::nanoseconds(told.row_ns);
  const auto& longest = told.by_rows.back();
  const double row_ns = static_cast<double>(told.row_ns) * static_cast<double>(longest.passes) /
                        static_cast<double>(longest.rows);
  return std::chrono::nanoseconds(static_cast<int64_t>(row_ns * rows));
}

Clock::duration late_after(const TargetGroup& target, const OutstandingPlan& plan) {
  return target.times.late_step(expected_pass(target, plan.rows));
}

}  // namespace

void PromptHandoffs::find_late(ServingGroup& group, Turn& turn) const {
  TargetGroup& target = group.target;
  const OutstandingPlan* const plan = target.planner.outstanding();
  if (!target.only_prefills() || !plan || target.is_late) return;
  if (turn.now() < plan->sent_at + late_after(target, *plan)) return;
  target.is_late = true;
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(turn.now() - plan->sent_at);
  turn.add(MemberChange{
      .kind = MemberChange::Kind::kRests,
      .peer = *target.peer(),
      .group = target.index,
      .about = fmt::format("it has not answered for {} ms; until it does, prompts are prefilled where they "
                           "are decoded",
                           waited.count()),
      .only_prefills = true});
}

void PromptHandoffs::expire(ServingGroup& group, Turn& turn) {
  if (options_.prefill_groups == 0) return;
  for (auto& [id, live] : group.requests.all())
    if (live->state == RequestState::kPrefill && live->awaits_blocks() && live->handoff.deadline &&
        turn.now() >= *live->handoff.deadline)
      give_up(*live, turn);
}

void PromptHandoffs::for_each_deadline(const ServingGroup& group,
                                       const std::function<void(Clock::time_point)>& consider) const {
  if (options_.prefill_groups == 0) return;
  if (const auto* plan = group.target.planner.outstanding(); plan && group.target.only_prefills())
    consider(plan->sent_at + late_after(group.target, *plan));
  for (const auto& [id, live] : group.requests.all())
    if (live->state == RequestState::kPrefill && live->awaits_blocks() && live->handoff.deadline)
      consider(*live->handoff.deadline);
}

void PromptHandoffs::group_lost(const ServingGroup& lost, Clock::time_point now) {
  if (options_.prefill_groups == 0) return;
  std::erase_if(ways_, [&](const auto& way) {
    return way.first.first == lost.target.index || way.first.second == lost.target.index;
  });
  for (ServingGroup& group : groups_)
    for (auto& [id, live] : group.requests.all())
      if (live->awaits_blocks() && live->handoff.from == lost.target.index) live->handoff.deadline = now;
  for (auto& [id, live] : lost.requests.all())
    totals_.handoffs_lost += !live->finished() && (lost.target.only_prefills() || live->awaits_blocks());
}

}  // namespace outrider
