// Membership: target groups and draft workers join, leave and are lost; requests of lost members are moved or
// finished.
#include <algorithm>

#include "coordinator/protocol.h"

namespace outrider {

void Protocol::on(MessageReceived& event, Turn& turn) {
  if (const auto* hello = std::get_if<Hello>(&event.message);
      hello && hello->role == Role::kTarget && event.zone == TrustZone::kOutside)
    return refuse_hello(event.peer, "only the job itself starts its target group; connect as a draft worker",
                        turn);
  if (event.zone == TrustZone::kTargets && !may_speak(event, turn)) return;
  if (PoolWorker* worker = pool_.find(event.peer)) {
    if (worker->is_silent()) dirty_.mark_all_dirty();  // its sequences can draft again
    worker->heard();
  }
  if (auto* draft = std::get_if<Draft>(&event.message)) {
    ServingGroup& group = group_of(draft->sequence);
    mark_dirty(group);
    return group.rounds.take(event.peer, *draft, event.bytes, group.requests, turn);
  }
  if (auto* result = std::get_if<StepResult>(&event.message))
    return take(event.peer, *result, event.bytes, turn);
  std::visit([&](auto& message) { receive(event.peer, message, turn); }, event.message);
}

// At the target groups' endpoint. A group that was given up, or never sent a Hello to this coordinator, is
// told so and may begin anew.
bool Protocol::may_speak(const MessageReceived& event, Turn& turn) {
  if (const auto* hello = std::get_if<Hello>(&event.message)) {
    if (hello->role == Role::kTarget) return true;
    refuse_hello(event.peer, "target groups join here; draft workers join where --listen says", turn);
    return false;
  }
  if (groups_.of(event.peer)) return true;
  ++totals_.unexpected_messages;
  if (std::holds_alternative<Heartbeat>(event.message) || std::holds_alternative<StepResult>(event.message))
    turn.send(event.peer,
              Welcome{.accepted = false, .reason = "say hello again", .target = {}, .eos_ids = {}});
  return false;
}

void Protocol::receive(PeerId peer, Hello& hello, Turn& turn) {
  if (hello.protocol_version != kProtocolVersion)
    return refuse_hello(peer,
                        fmt::format("protocol version {} is not {}; install the same release on both ends",
                                    hello.protocol_version, kProtocolVersion),
                        turn);
  switch (hello.role) {
    case Role::kTarget:
      return target_joined(peer, hello, turn);
    case Role::kDraft:
      return worker_joined(peer, hello, turn);
    case Role::kCoordinator:
      break;
  }
  refuse_hello(peer, "there is already a coordinator here; connect as a draft worker or a target group",
               turn);
}

void Protocol::refuse_hello(PeerId peer, std::string reason, Turn& turn) {
  ++totals_.hellos_refused;
  turn.send(peer, Welcome{.accepted = false, .reason = std::move(reason), .target = {}, .eos_ids = {}});
}

void Protocol::target_joined(PeerId peer, Hello& hello, Turn& turn) {
  const Welcome welcome{.accepted = true, .reason = {}, .target = {}, .eos_ids = {}};
  ServingGroup* place = groups_.place_of(peer, hello);
  if (!place || !groups_.is_for(*place, hello.only_prefills))
    return refuse_hello(peer, groups_.no_place_for(hello.only_prefills), turn);
  TargetGroup& target = place->target;
  if (target.is_here() && target.generation() == hello.generation) {
    target.move_to(peer);
    return turn.send(peer, welcome);
  }
  if (options_.target_fingerprint != 0 && hello.model.fingerprint != options_.target_fingerprint)
    return refuse_hello(peer,
                        fmt::format("its model '{}' is not the one that this run was started with; give both "
                                    "the same --model, --weight-format and --kv-dtype",
                                    hello.model.name),
                        turn);
  if (Status status = groups_.check(hello, *place); !status.ok())
    return refuse_hello(peer, status.message(), turn);
  if (target.is_here()) target_lost(*place, unavailable("the target group was restarted"), turn);
  if (options_.target_groups > 1) hello.slices = {};  // a worker is sent the endpoints of one group only
  target.join(peer, std::move(hello));
  ++totals_.group(target.index).joined;
  turn.send(peer, welcome);
  turn.add(MemberChange{.kind = MemberChange::Kind::kJoined,
                        .peer = peer,
                        .group = target.index,
                        .about = target.model().name,
                        .only_prefills = target.only_prefills()});
  if (target.only_prefills()) return;  // requests and workers still wait for one that decodes
  target_status_ = lost_ = {};
  join_deadline_.reset();
  for (ServingGroup& group : groups_)  // requests that waited for a group
    if (!group.target.is_here()) totals_.failovers += move_requests(group);
  for (auto& [early, worker] : pool_.take_early()) worker_joined(early, worker, turn);
}

// If another group is connected, its requests continue there.
void Protocol::target_lost(ServingGroup& group, Status why, Turn& turn, MemberChange::Kind kind) {
  dirty_.mark_all_dirty();
  if (const auto peer = group.target.peer())
    turn.add(MemberChange{.kind = kind,
                          .peer = *peer,
                          .group = group.target.index,
                          .about = why.message(),
                          .only_prefills = group.target.only_prefills()});
  handoffs_.group_lost(group, turn.now());
  group.target.leave();
  group.target.was_lost = kind == MemberChange::Kind::kLost;
  ++totals_.group(group.target.index).lost;
  if (groups_.any_here())
    hand_over(group, std::move(why), turn);
  else if (group.target.only_prefills())  // its requests wait, too, or have ended
    totals_.drafts_used -= group.requests.lose_group();
  else if (options_.target_timeout.count() > 0)
    wait_for_group(group, std::move(why), turn);
  else
    end_all(std::move(why), turn);
}

// Moves requests to connected groups. A request that comes later in the order waits there for a slot.
int64_t Protocol::move_requests(ServingGroup& lost) {
  int64_t count = 0;
  for (auto& [id, live] : lost.requests.take_all()) {
    ServingGroup& next = *groups_.best_for(*live, TargetGroups::SeqSlots::kAny);
    live->group = next.target.index;
    next.requests.add(std::move(live));
    ++count;
  }
  return count;
}

// Requests continue from their committed text.
void Protocol::hand_over(ServingGroup& lost, Status why, Turn& turn) {
  totals_.drafts_used -= lost.requests.lose_group();
  const int64_t count = move_requests(lost);
  totals_.failovers += count;
  totals_.group(lost.target.index).handed_over += count;
  turn.add(TargetLost{.group = lost.target.index, .why = std::move(why), .handed_over = count});
}

// The same, but requests stay in their entry until a group joins. Requests that wait for a slot keep waiting.
void Protocol::wait_for_group(ServingGroup& lost, Status why, Turn& turn) {
  totals_.drafts_used -= lost.requests.lose_group();
  const auto count = static_cast<int64_t>(lost.requests.running());
  totals_.group(lost.target.index).handed_over += count;
  join_deadline_ = turn.now() + options_.target_timeout;
  lost_ = why;
  turn.add(TargetLost{.group = lost.target.index,
                      .why = std::move(why),
                      .handed_over = count,
                      .wait = options_.target_timeout});
}

// Every open request ends with a typed error; new ones are refused until a target joins again.
void Protocol::end_all(Status why, Turn& turn) {
  dirty_.mark_all_dirty();
  target_status_ = std::move(why);
  for (ServingGroup& group : groups_) {
    for (auto& [id, live] : group.requests.all()) {
      if (!group.target.is_here()) live->sequence.target.open = false;  // one that only prefills closes them
      if (!live->finished()) finish(*live, FinishReason::kError, target_status_, turn);
    }
    group.requests.sweep();
  }
  while (LiveRequest* first = queue_.first()) finish(*first, FinishReason::kError, target_status_, turn);
}

// A worker that says Hello again has lost its state: its sequences are opened again.
void Protocol::worker_joined(PeerId peer, Hello& hello, Turn& turn) {
  hello.slices = {};  // a target group's
  const ServingGroup* any = groups_.any_that_is_here();
  if (!any) {
    if (!pool_.keep_early(peer, hello))
      refuse_hello(peer, "too many workers wait for the target group", turn);
    return;
  }
  const TargetGroup& target = any->target;
  worker_lost(peer, "it connected anew", turn);
  if (target.drafts() && (!target.has_two_places() || hello.hidden_state_head == 0))
    return refuse_hello(
        peer,
        fmt::format("the target drafts itself, with a head beside it; no draft worker is needed{}",
                    target.has_two_places() ? " but one with the same head" : ""),
        turn);
  if (hello.hidden_state_head != 0 && hello.hidden_state_head != target.hidden_state_head())
    return refuse_hello(peer,
                        "its head reads states that this target does not tell; give both ends the same "
                        "--drafter and --draft-model, and the target --head-place worker or auto",
                        turn);
  if (Status status = WorkerPool::check(hello, target.model(), tokenizer_); !status.ok())
    return refuse_hello(peer, status.message(), turn);
  if (pool_.is_full())
    return refuse_hello(peer, fmt::format("there are {} draft workers already", pool_.size()), turn);
  DrafterKind kind = 0;
  for (ServingGroup& group : groups_)
    kind = group.target.costs.add_kind(hello.model.fingerprint, hello.pass_times, hello.drafts_blocks);
  std::string name = hello.model.name;
  pool_.join(peer, std::move(hello), kind);
  turn.send(peer, Welcome{.accepted = true,
                          .reason = {},
                          .target = target.model(),
                          .eos_ids = options_.eos_ids,
                          .slices = target.slices()});
  turn.add(
      MemberChange{.kind = MemberChange::Kind::kJoined, .peer = peer, .group = {}, .about = std::move(name)});
}

// Returns the worker's kind, if it was one.
std::optional<DrafterKind> Protocol::forget_worker(PeerId peer, Turn& turn) {
  const auto kind = pool_.remove(peer);
  if (!kind) return std::nullopt;
  dirty_.mark_all_dirty();
  for (ServingGroup& group : groups_)
    for (auto& [id, live] : group.requests.all()) {
      if (live->link.peer != peer) continue;
      live->link = {};
      if (live->state == RequestState::kDrafting) live->go_plain(turn.now());
    }
  return kind;
}

void Protocol::worker_lost(PeerId peer, std::string why, Turn& turn) {
  const auto kind = forget_worker(peer, turn);
  if (!kind) return;
  turn.add(
      MemberChange{.kind = MemberChange::Kind::kLost, .peer = peer, .group = {}, .about = std::move(why)});
  ++totals_.workers_lost;
  ++totals_.drafters[*kind].lost;
}

void Protocol::worker_left(PeerId peer, Turn& turn) {
  const auto kind = forget_worker(peer, turn);
  if (!kind) return;
  turn.add(MemberChange{
      .kind = MemberChange::Kind::kLeft, .peer = peer, .group = {}, .about = "it was asked to leave"});
  ++totals_.workers_left;
  ++totals_.drafters[*kind].left;
}

// Unloads draft workers that have not helped for `--unload-drafter` seconds. Their sequences continue without
// drafts or move to another worker.
void Protocol::unload_workers(Turn& turn) {
  for (const auto& [peer, pause] : pool_.useless(turn.now())) {
    (void)forget_worker(peer, turn);
    ++totals_.workers_unloaded;
    turn.add(MemberChange{
        .kind = MemberChange::Kind::kLeft,
        .peer = peer,
        .group = {},
        .about = fmt::format("it is unloaded for {} s, because its drafts have not paid (--unload-drafter)",
                             static_cast<double>(pause.count()) / 1000)});
    turn.send(peer, Unload{.pause_ms = pause.count()});
  }
}

void Protocol::receive(PeerId peer, Failure& message, Turn& turn) {
  if (ServingGroup* group = groups_.of(peer))
    return target_lost(*group, unavailable("the target group failed: " + message.message), turn);
  worker_lost(peer, "it failed: " + message.message, turn);
}

void Protocol::receive(PeerId peer, Shutdown&, Turn& turn) {
  if (ServingGroup* group = groups_.of(peer))
    return target_lost(*group, unavailable("the target group left"), turn, MemberChange::Kind::kLeft);
  worker_left(peer, turn);
  turn.send(peer, Shutdown{});  // goodbye: its messages were all read, and it may leave
}

void Protocol::on(PeerLost& event, Turn& turn) {
  if (ServingGroup* group = groups_.of(event.peer))
    return target_lost(*group, unavailable("the target group is gone: " + event.why), turn);
  worker_lost(event.peer, std::move(event.why), turn);
}

// The worker's queue was full: it gets no requests for a while, then the messages that it missed.
void Protocol::on(SendFailed& event, Turn& turn) {
  ++totals_.sends_failed;
  if (ServingGroup* group = groups_.of(event.peer))
    return target_lost(
        *group,
        unavailable("the target group takes no messages" + (event.why.empty() ? "" : ": " + event.why)),
        turn);
  PoolWorker* worker = pool_.find(event.peer);
  if (!worker) return;
  const auto* propose = std::get_if<Propose>(&event.message);
  if (propose && propose->sent_after_us > 0) return;  // its queue is full of repeated messages
  pool_.missed(*worker, draft_timeout(), turn.now());
  pool_.owes(event.peer);
  if (const auto* close = std::get_if<Close>(&event.message)) return worker->keep_close(close->sequence);
  const auto* open = std::get_if<Open>(&event.message);
  const auto* rows = std::get_if<HiddenStateRows>(&event.message);
  LiveRequest* live = this->live(propose ? propose->sequence
                                 : open  ? open->sequence
                                 : rows  ? rows->sequence
                                         : SequenceId());
  if (!live || live->link.peer != event.peer) return;
  if (rows) return HiddenStateRelay::take_back(*rows, *live);
  live->link.opened = false;
  live->link.probe_draft.reset();
  if (live->state == RequestState::kDrafting) live->go_plain(turn.now());
}

}  // namespace outrider
