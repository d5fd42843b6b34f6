#include "coordinator/protocol.h"

#include <algorithm>
#include <utility>

#include "coordinator/rounds/draft_shares.h"

namespace outrider {

Protocol::Protocol(ProtocolOptions options, GammaPolicyFactory gamma, const Tokenizer* tokenizer)
    : options_(std::move(options)),
      gamma_(std::move(gamma)),
      tokenizer_(tokenizer),
      dirty_(std::max(1, options_.target_groups)) {
  CHECK(options_.max_num_seqs > 0 && options_.prefill_chunk > 0 && options_.max_queued > 0, "empty limits");
  CHECK(options_.max_rows_per_step >= 8, "max_rows_per_step={} leaves no room", options_.max_rows_per_step);
}

namespace {

// True for events that may affect any group. Drafts and step results affect one group; a submit affects the
// group that admits it; ticks mark groups by deadline. Everything else is rare, so all groups are marked
// dirty.
bool may_concern_all(const Event& event) {
  if (std::holds_alternative<Submit>(event) || std::holds_alternative<Tick>(event)) return false;
  const auto* received = std::get_if<MessageReceived>(&event);
  return !received || !(std::holds_alternative<Draft>(received->message) ||
                        std::holds_alternative<StepResult>(received->message) ||
                        std::holds_alternative<Heartbeat>(received->message));
}

}  // namespace

std::vector<Action> Protocol::step(Event event, Clock::time_point now) {
  Turn turn(now);
  now_ = now;
  if (may_concern_all(event)) dirty_.mark_all_dirty();
  if (!groups_.any_here() && !join_deadline_ && target_status_.ok())
    join_deadline_ = now + options_.target_join_timeout;
  std::visit([&](auto& e) { on(e, turn); }, event);
  pump(turn);
  return turn.take_actions();
}

// Visits every dirty group. `look` may mark more groups; indexing (not iterators) keeps that safe.
template <class Look>
void Protocol::for_each_dirty(const Look& look) {
  for (size_t i = 0; i < dirty_.dirty().size(); ++i) look(groups_.at(dirty_.dirty()[i]));
}

// After every event: ends what has timed out, starts what can start, and sends plans to idle targets. Groups
// without an event or deadline need no visit.
void Protocol::pump(Turn& turn) {
  dirty_.wake(turn.now());
  expire(turn);
  for_each_dirty([&](ServingGroup& group) { group.rounds.repeat_overdue(group.requests.all(), turn); });
  if (pool_.owes_any()) {
    for (ServingGroup& group : groups_) pool_.resume(group.requests.all(), turn);
    pool_.resumed(turn.now());
  }
  unload_workers(turn);
  const auto mark = [this](const ServingGroup& group) { mark_dirty(group); };
  handoffs_.choose(mark, queue_.first(), turn.now());  // before later requests take the places
  handoffs_.leave_late_groups(mark, queue_.first());
  admit(turn);
  if (options_.by_priority) {  // places that are left
    handoffs_.choose(mark, nullptr, turn.now());
    handoffs_.leave_late_groups(mark, nullptr);
  }
  assign(turn);
  for_each_dirty([&](ServingGroup& group) {
    const auto batch_size = static_cast<int32_t>(group.requests.running());
    group.target.in_prefill = static_cast<int32_t>(group.requests.in_state(RequestState::kPrefill).size());
    for (auto& [id, live] : group.requests.all())
      if (live->state == RequestState::kIdle) group.rounds.begin(*live, batch_size, turn);
  });
  for (const bool only_prefills : {true, false})  // prefill groups hand requests over to others
    for_each_dirty([&](ServingGroup& group) {
      if (group.target.only_prefills() != only_prefills) return;
      plan(group, turn);
      group.requests.sweep();
    });
  for_each_dirty([&](ServingGroup& group) { dirty_.settle(group.target.index, due(group)); });
  dirty_.settled_all();
}

// The next time at which the group has work without an event.
std::optional<Clock::time_point> Protocol::due(const ServingGroup& group) const {
  std::optional<Clock::time_point> earliest;
  const auto consider = [&](Clock::time_point at) {
    if (at > now_ && (!earliest || at < *earliest)) earliest = at;
  };
  if (const auto* plan = group.target.planner.outstanding())
    consider(plan->sent_at + group.target.times.step_timeout());
  group.rounds.for_each_deadline(group.requests.all(), consider);
  handoffs_.for_each_deadline(group, consider);
  return earliest;
}

std::optional<Clock::time_point> Protocol::next_deadline() const {
  std::optional<Clock::time_point> earliest;
  const auto consider = [&](Clock::time_point at) {
    if (at > now_ && (!earliest || at < *earliest)) earliest = at;
  };
  if (join_deadline_) consider(*join_deadline_);
  if (const auto next = dirty_.next()) consider(*next);
  if (pool_.owes_any())
    for (const ServingGroup& group : groups_) pool_.for_each_resumption(group.requests.all(), consider);
  return earliest;
}

std::vector<PeerId> Protocol::targets() const {
  std::vector<PeerId> peers;
  for (const ServingGroup& group : groups_)
    if (group.target.is_here()) peers.push_back(*group.target.peer());
  return peers;
}

// ---- rounds ---------------------------------------------------------------------------------------------

// A sequence changes its worker between rounds, not while it drafts.
void Protocol::assign(Turn& turn) {
  if (pool_.size() == 0) return;
  if (pool_.weigh(turn.now()))
    for (ServingGroup& group : groups_) assign(group, turn);
  else  // the last event's plan may have freed sequences that could not be moved before
    for (const int32_t group : dirty_.lately_dirty()) assign(groups_.at(group), turn);
}

void Protocol::assign(ServingGroup& group, Turn& turn) {
  for (auto& [id, live] : group.requests.all()) {
    if (!live->running() || live->state == RequestState::kDrafting) continue;
    if (!pool_.assign(*live, turn)) continue;
    mark_dirty(group);
    if (!group.target.drafts()) use_kind(*live, pool_.of(*live)->kind());
  }
}

// A length policy learns for one kind of drafter only. A head counts as one kind in both of its places.
void Protocol::use_kind(LiveRequest& live, DrafterKind kind) const {
  if (live.kind != kind && live.kind != 0) {
    live.other_gammas[live.kind] = std::move(live.gamma);
    live.gamma = std::move(live.other_gammas[kind]);
    if (!live.gamma) live.gamma = make_gamma(live);
  }
  live.kind = kind;
}

void Protocol::plan(ServingGroup& group, Turn& turn) {
  TargetGroup& target = group.target;
  if (!target.is_here()) return;
  auto step = target.planner.plan(group.requests, target.seq_slots(), turn.now());
  if (!step && group.hidden_states.is_awaited(group.requests.all()))
    step = target.planner.plan_nothing(group.requests, turn.now());
  if (!step) return;
  const OutstandingPlan& plan = *target.planner.outstanding();
  const auto batch_size = static_cast<int32_t>(group.requests.running());
  group.rounds.own().choose_place(plan, batch_size, turn.now());
  group.hidden_states.ask(group.requests.all(), *step);
  for (size_t i = 0; i < plan.entries.size(); ++i) {
    LiveRequest& live = *plan.entries[i].live;
    const PoolWorker* worker = pool_.of(live);
    live.round.ranks_rows = plan.entries[i].sampling && worker && worker->reads_successors();
    step->entries[i].successors = live.round.ranks_rows;
  }
  if (target.drafts())
    for (size_t i = 0; i < plan.entries.size(); ++i)
      if (plan.entries[i].sampling)
        group.rounds.own().ask(*plan.entries[i].live, batch_size, step->entries[i], turn.now());
  for (LiveRequest* live : plan.gave_up) {
    if (!live->round.has_draft || live->round.draft.q_kind != QKind::kSlices) continue;
    totals_.drop(DropReason::kSliceMissing);  // the ranks dropped the slices with it
    live->forget_draft();
  }
  count(group, plan, *step);
  handoffs_.move(group, plan, [this](const ServingGroup& next) { mark_dirty(next); });
  target.costs.observe_drafts(plan.entries);
  DraftShares::settle(plan.entries, group.requests.all(), target.costs.all());
  turn.send(*target.peer(), std::move(*step));
}

void Protocol::count(ServingGroup& group, const OutstandingPlan& plan, const StepPlan& step) {
  GroupTotals& here = totals_.group(group.target.index);
  for (const PlannedEntry& entry : plan.entries)
    totals_.drafts_used += entry.sampling && entry.live->round.has_draft;
  for (const Open& open : step.opens) {
    const LiveRequest& live = *group.requests.find(open.sequence);
    if (!group.target.kv.looks_up(live) || live.recomputes() || live.awaits_blocks()) continue;
    for (auto* queries : {&totals_.prefix_queries, &here.prefix_queries})
      *queries += static_cast<int64_t>(open.ids.size());
    for (auto* hits : {&totals_.prefix_hits, &here.prefix_hits}) *hits += open.prefix_length;
  }
  totals_.handoffs_lost += plan.lost_handoffs;
  for (auto* preemptions : {&totals_.preemptions, &here.preemptions})
    *preemptions += static_cast<int64_t>(plan.gave_up.size());
  for (auto* passes : {&totals_.target_passes, &here.passes}) *passes += !plan.entries.empty();
  for (auto* rows : {&totals_.target_rows, &here.rows}) *rows += plan.rows;
}

void Protocol::take(PeerId peer, StepResult& message, size_t frame_bytes, Turn& turn) {
  ServingGroup* group = groups_.of(peer);
  if (!group) {
    ++totals_.unexpected_messages;
    return;
  }
  mark_dirty(*group);
  const OutstandingPlan* plan = group->target.planner.outstanding();
  if (!plan || message.step < plan->step) {
    ++totals_.stale_results;
    return;
  }
  Status status = group->verdicts.check(message, *plan);
  if (status.ok()) status = group->hidden_states.check(message);
  if (status.ok()) status = handoffs_.check(message, *plan);
  if (!status.ok())
    return target_lost(
        *group,
        status.in(fmt::format("the target group broke the protocol: result of step {}", message.step)), turn);
  const OutstandingPlan done = group->target.planner.take();
  group->target.is_late = false;
  group->verdicts.learn_pass(message, done, turn.now());
  apply(*group, message, done, turn);
  for (Draft& draft : message.drafts) group->rounds.own().take(draft, frame_bytes, group->requests);
  group->hidden_states.pass_on(message, group->requests, turn);
}

void Protocol::apply(ServingGroup& group, StepResult& result, const OutstandingPlan& plan, Turn& turn) {
  const int64_t emitted_before = totals_.rounds.emitted;
  auto verdict = result.verdicts.begin();
  auto scores = result.scores.begin();
  for (const PlannedEntry& entry : plan.entries) {
    LiveRequest& live = *entry.live;
    if (entry.scored >= 0) {
      std::vector<PositionLogprobs> logprobs = std::move((scores++)->logprobs);
      // Skips scores that another group sent before it failed.
      const int32_t told = std::clamp(live.scores_to - entry.first_scored, 0, entry.scored);
      logprobs.erase(logprobs.begin(), logprobs.begin() + told);
      live.scores_to = std::max(live.scores_to, entry.first_scored + entry.scored);
      if (!live.finished() && !logprobs.empty())
        turn.add(Emit{.request = live.id(),
                      .ids = {},
                      .logprobs = {},
                      .text = {},
                      .prompt_logprobs = std::move(logprobs)});
    }
    if (entry.sampling) {
      auto end = group.verdicts.apply(entry, *verdict++, result,
                                      static_cast<int32_t>(group.requests.running()), plan.prefills, turn);
      if (end) finish(live, end->reason, std::move(end->error), turn);
      group.verdicts.learn_round(entry, plan.prefills, turn.now());
    } else {
      live.sequence.target_prefilled(entry.input_count);
      if (!live.finished())
        live.become(live.has_recomputed() ? RequestState::kReady : RequestState::kPrefill);
    }
  }
  handoffs_.settle(result, plan, turn.now());
  GroupTotals& here = totals_.group(group.target.index);
  here.emitted += totals_.rounds.emitted - emitted_before;
  here.busy_ns +=
      reported_ns(result.forward_ns) + reported_ns(result.verify_ns) + reported_ns(result.commit_ns);
}

// The group that runs the sequence. For a sequence that runs nowhere any group gives the right answer.
ServingGroup& Protocol::group_of(SequenceId id) {
  const LiveRequest* live = find(id);
  ServingGroup* group = live ? groups_.of(*live) : nullptr;
  return group ? *group : groups_.first();
}

void Protocol::receive(PeerId peer, Resync& message, Turn& turn) {
  if (!pool_.find(peer)) {
    ++totals_.unexpected_messages;
    return;
  }
  ServingGroup& group = group_of(message.sequence);
  group.rounds.take(peer, message, group.requests, turn);
}

// ---- time -----------------------------------------------------------------------------------------------

// Moves the deadlines after which requests end. A late draft only costs time.
void Protocol::on(Away& event, Turn&) {
  if (join_deadline_) *join_deadline_ += event.missed;
  for (ServingGroup& group : groups_) group.target.planner.move(event.missed);
}

// The longest draft timeout of all groups.
Clock::duration Protocol::draft_timeout() const {
  Clock::duration longest{0};
  for (const ServingGroup& group : groups_) longest = std::max(longest, group.target.times.draft_timeout());
  return longest;
}

void Protocol::expire(Turn& turn) {
  if (join_deadline_ && turn.now() >= *join_deadline_) {
    join_deadline_.reset();
    end_all(lost_.ok()
                ? deadline_exceeded(fmt::format("{} within {} ms",
                                                options_.one_process ? "the target model could not be loaded"
                                                                     : "no target group joined",
                                                options_.target_join_timeout.count()))
                : unavailable(fmt::format("{}; no other one joined within {} ms (--target-timeout)",
                                          lost_.message(), options_.target_timeout.count())),
            turn);
  }
  for_each_dirty([&](ServingGroup& group) {
    const auto* plan = group.target.planner.outstanding();
    if (!plan || turn.now() < plan->sent_at + group.target.times.step_timeout()) return;
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(turn.now() - plan->sent_at);
    target_lost(group,
                deadline_exceeded(fmt::format("the target group did not answer step {} within {} ms",
                                              plan->step, waited.count())),
                turn);
  });
  for_each_dirty([&](ServingGroup& group) {
    group.rounds.expire(group.requests.all(), turn);
    handoffs_.find_late(group, turn);
    handoffs_.expire(group, turn);
  });
}

}  // namespace outrider
