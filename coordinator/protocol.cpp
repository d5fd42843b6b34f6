#include "coordinator/protocol.h"

#include <algorithm>

namespace outrider {

Protocol::Protocol(ProtocolOptions options, GammaPolicyFactory gamma, const Tokenizer* tokenizer)
    : options_(std::move(options)), gamma_(std::move(gamma)), tokenizer_(tokenizer) {
  CHECK(options_.max_num_seqs > 0 && options_.prefill_chunk > 0 && options_.max_queued > 0, "empty limits");
  CHECK(options_.max_rows_per_step >= 8, "max_rows_per_step={} leaves no room", options_.max_rows_per_step);
}

std::vector<Action> Protocol::step(Event event, Clock::time_point now) {
  Turn turn(now);
  now_ = now;
  if (!target_.is_here() && !join_deadline_ && target_status_.ok())
    join_deadline_ = now + options_.target_join_timeout;
  std::visit([&](auto& e) { on(e, turn); }, event);
  pump(turn);
  return turn.take_actions();
}

// After every event: what time has ended, who may start, and whether the idle target gets a plan.
void Protocol::pump(Turn& turn) {
  expire(turn);
  rounds_.repeat_overdue(requests_.all(), turn);
  pool_.resume(requests_.all(), turn);
  admit(turn);
  assign(turn);
  const auto batch_size = static_cast<int32_t>(requests_.running());
  for (auto& [id, live] : requests_.all()) {
    if (live->state == RequestState::kIdle) rounds_.begin(*live, batch_size, turn);
  }
  plan(turn);
  requests_.sweep();
}

std::optional<Clock::time_point> Protocol::next_deadline() const {
  std::optional<Clock::time_point> earliest;
  const auto consider = [&](Clock::time_point at) {
    if (at > now_ && (!earliest || at < *earliest)) earliest = at;
  };
  if (join_deadline_) consider(*join_deadline_);
  if (const auto* plan = target_.planner.outstanding())
    consider(plan->sent_at + target_.times.step_timeout());
  rounds_.for_each_deadline(requests_.all(), consider);
  pool_.for_each_resumption(requests_.all(), consider);
  return earliest;
}

// ---- requests -------------------------------------------------------------------------------------------

Status Protocol::check_request(const Request& request) const {
  if (request.prompt.empty()) return invalid_argument("the prompt has no tokens");
  if (request.max_tokens < 1)
    return invalid_argument(fmt::format("max_tokens={} must be at least 1", request.max_tokens));
  if (!request.stop.empty() && !tokenizer_)
    return unsupported("stop strings need a tokenizer; load one or send no stop strings");
  RETURN_IF_ERROR(requests_.check_room(request.prompt.size()));
  return target_status_;
}

// What can only be known once the target is there.
Status Protocol::check_fits(LiveRequest& live) const {
  const Sequence& sequence = live.sequence;
  const int32_t vocab_size = target_.model().vocab_size;
  for (const TokenId id : sequence.ids()) {
    if (id.value() < 0 || id.value() >= vocab_size)
      return invalid_argument(
          fmt::format("prompt id {} is outside the vocabulary of {}", id.value(), vocab_size));
  }
  if (sequence.committed() >= target_.max_context() && target_.max_context() == target_.kv.tokens())
    return invalid_argument(
        fmt::format("a prompt of {} tokens leaves no room in a KV cache of {}; shorten it, or start with "
                    "more of --kv-cache-tokens",
                    sequence.committed(), target_.max_context()));
  if (sequence.committed() >= target_.max_context())
    return invalid_argument(fmt::format("a prompt of {} tokens leaves no room in a context of {}; shorten it",
                                        sequence.committed(), target_.max_context()));
  const auto open = encode(live.open(), {});
  if (!open.ok()) return open.status().in("the request cannot be sent to the target group");
  live.open_bytes = open->size();
  if (!target_.planner.open_fits(live.open_bytes))
    return invalid_argument(fmt::format(
        "a prompt of {} tokens and {} biases does not fit a message of {} bytes", sequence.committed(),
        live.request.sampling.logit_bias.size(), options_.max_bytes_per_step));
  return {};
}

void Protocol::on(Submit& event, Turn& turn) {
  CHECK(!requests_.find(event.id), "request {} is already open", event.id.value());
  ++totals_.submitted;
  if (!totals_.first_submit_at) totals_.first_submit_at = turn.now();
  if (Status status = check_request(event.request); !status.ok())
    return refuse(event, std::move(status), turn);
  LiveRequest& live = requests_.add(event.id, std::move(event.request));
  live.metrics.submitted_at = std::min(live.request.asked_at.value_or(turn.now()), turn.now());
  live.metrics.prompt_tokens = live.sequence.prompt_length();
}

void Protocol::refuse(Submit& event, Status error, Turn& turn) {
  ++totals_.refused;
  ++totals_.finished[static_cast<size_t>(FinishReason::kError)];
  Finish refusal{
      .request = event.id, .reason = FinishReason::kError, .error = std::move(error), .metrics = {}};
  refusal.metrics.submitted_at = turn.now();
  refusal.metrics.finished_at = turn.now();
  totals_.last_finish_at = turn.now();
  turn.add(std::move(refusal));
}

void Protocol::on(Cancel& event, Turn& turn) {
  LiveRequest* live = requests_.find(event.id);
  if (live && !live->finished()) finish(*live, FinishReason::kCancelled, {}, turn);
}

std::unique_ptr<GammaPolicy> Protocol::make_gamma(const LiveRequest& live) const {
  return live.request.gamma ? live.request.gamma() : gamma_();
}

void Protocol::admit(Turn& turn) {
  if (!target_.is_here()) return;
  while (requests_.queued() > 0 && requests_.running() < target_.places()) {
    LiveRequest& live = *requests_.first_in_queue();
    if (Status status = check_fits(live); !status.ok()) {
      finish(live, FinishReason::kError, std::move(status), turn);
      continue;
    }
    requests_.admit_first();
    totals_.prompt_tokens += live.sequence.prompt_length();
    live.gamma = make_gamma(live);
    live.ready_at = turn.now();
    totals_.queued.add(turn.now() - live.metrics.submitted_at);
    totals_.prompt_lengths.add(live.sequence.prompt_length());
    if (tokenizer_)
      live.text = std::make_unique<TextStream>(*tokenizer_, live.sequence.ids(), live.request.stop);
  }
}

// Tells the client.
void Protocol::finish(LiveRequest& live, FinishReason reason, Status error, Turn& turn) {
  if (live.round.has_draft && !live.round.used)
    ++totals_.drafts_dropped[static_cast<size_t>(DropReason::kNotUsed)];
  requests_.finish(live);
  pool_.close(live, turn);
  live.metrics.finished_at = turn.now();
  totals_.last_finish_at = turn.now();
  ++totals_.finished[static_cast<size_t>(reason)];
  totals_.gaps.add(live.metrics.gaps);
  totals_.bursts.add(live.metrics.bursts);
  if (reason == FinishReason::kStop || reason == FinishReason::kLength) {
    totals_.e2e.add(turn.now() - live.metrics.submitted_at);
    totals_.generation_lengths.add(live.sequence.emitted());
  }
  if (live.metrics.first_token_at) totals_.ttft.add(*live.metrics.first_token_at - live.metrics.submitted_at);
  turn.add(
      Finish{.request = live.id(), .reason = reason, .error = std::move(error), .metrics = live.metrics});
}

// ---- rounds ---------------------------------------------------------------------------------------------

// A sequence's worker changes between its rounds, not while it drafts.
void Protocol::assign(Turn& turn) {
  if (pool_.size() == 0) return;
  for (auto& [id, live] : requests_.all()) {
    if (!live->running() || live->state == RequestState::kDrafting) continue;
    if (pool_.assign(*live, turn)) use_kind(*live, pool_.of(*live)->kind());
  }
}

// What a draft length policy learnt of one kind of drafter says nothing about another.
void Protocol::use_kind(LiveRequest& live, DrafterKind kind) const {
  if (live.kind != kind && live.kind != 0) {
    live.other_gammas[live.kind] = std::move(live.gamma);
    live.gamma = std::move(live.other_gammas[kind]);
    if (!live.gamma) live.gamma = make_gamma(live);
  }
  live.kind = kind;
}

void Protocol::plan(Turn& turn) {
  if (!target_.is_here()) return;
  auto step = target_.planner.plan(requests_, turn.now());
  if (!step) return;
  const OutstandingPlan& plan = *target_.planner.outstanding();
  if (target_.drafts())
    for (size_t i = 0; i < plan.entries.size(); ++i)
      if (plan.entries[i].sampling)
        rounds_.ask_target(*plan.entries[i].live, static_cast<int32_t>(requests_.running()),
                           step->entries[i]);
  for (const PlannedEntry& entry : plan.entries)
    totals_.drafts_used += entry.sampling && entry.live->round.has_draft;
  totals_.preemptions += static_cast<int64_t>(plan.gave_up.size());
  for (LiveRequest* live : plan.gave_up) {
    if (!live->round.has_draft || live->round.draft.q_kind != QKind::kSlices) continue;
    ++totals_.drafts_dropped[static_cast<size_t>(DropReason::kSliceMissing)];  // ranks forgot them with it
    live->forget_draft();
  }
  for (const Open& open : step->opens) {
    const LiveRequest& live = *requests_.find(open.sequence);
    if (!target_.kv.looks_up(live) || live.reads_again()) continue;
    totals_.prefix_queries += static_cast<int64_t>(open.ids.size());
    totals_.prefix_hits += open.prefix_length;
  }
  target_.costs.observe_drafts(plan.entries);
  totals_.target_passes += !plan.entries.empty();
  totals_.target_rows += plan.rows;
  turn.send(*target_.peer(), std::move(*step));
}

void Protocol::take(PeerId peer, StepResult& message, size_t frame_bytes, Turn& turn) {
  if (!target_.is(peer)) {
    ++totals_.unexpected_messages;
    return;
  }
  const OutstandingPlan* plan = target_.planner.outstanding();
  if (!plan || message.step < plan->step) {
    ++totals_.stale_results;
    return;
  }
  if (Status status = verdicts_.check(message, *plan); !status.ok())
    return target_lost(
        status.in(fmt::format("the target group broke the protocol: result of step {}", message.step)), turn);
  const OutstandingPlan done = target_.planner.take();
  verdicts_.learn_pass(message, done, turn.now());
  auto verdict = message.verdicts.begin();
  auto scores = message.scores.begin();
  for (const PlannedEntry& entry : done.entries) {
    LiveRequest& live = *entry.live;
    if (entry.scored >= 0) {
      std::vector<PositionLogprobs> logprobs = std::move((scores++)->logprobs);
      if (!live.finished() && !logprobs.empty())
        turn.add(Emit{.request = live.id(),
                      .ids = {},
                      .logprobs = {},
                      .text = {},
                      .prompt_logprobs = std::move(logprobs)});
    }
    if (entry.sampling) {
      auto end = verdicts_.apply(entry, *verdict++, message, static_cast<int32_t>(requests_.running()), turn);
      if (end) finish(live, end->reason, std::move(end->error), turn);
      verdicts_.learn_round(entry, done.prefills, turn.now());
    } else {
      live.sequence.target_prefilled(entry.input_count);
      if (!live.finished())
        live.become(live.has_read_again() ? RequestState::kReady : RequestState::kPrefill);
    }
  }
  for (Draft& draft : message.drafts) rounds_.take_own(draft, frame_bytes, requests_);
}

void Protocol::receive(PeerId peer, Resync& message, Turn& turn) {
  if (pool_.find(peer)) return rounds_.take(peer, message, requests_, turn);
  ++totals_.unexpected_messages;
}

// ---- who takes part -------------------------------------------------------------------------------------

void Protocol::on(MessageReceived& event, Turn& turn) {
  if (const auto* hello = std::get_if<Hello>(&event.message);
      hello && hello->role == Role::kTarget && event.door == Door::kOutside)
    return refuse_hello(event.peer, "only the job itself starts its target group; connect as a draft worker",
                        turn);
  if (PoolWorker* worker = pool_.find(event.peer)) worker->heard();
  if (auto* draft = std::get_if<Draft>(&event.message))
    return rounds_.take(event.peer, *draft, event.bytes, requests_, turn);
  if (auto* result = std::get_if<StepResult>(&event.message))
    return take(event.peer, *result, event.bytes, turn);
  std::visit([&](auto& message) { receive(event.peer, message, turn); }, event.message);
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
  if (target_.is_here() && target_.generation() == hello.generation) {
    target_.move_to(peer);
    return turn.send(peer, welcome);
  }
  if (target_.is_here() && !target_.is(peer))
    return refuse_hello(peer, "a target group has already joined", turn);
  if (hello.model.vocab_size <= 0 || hello.model.max_context <= 1)
    return refuse_hello(peer,
                        fmt::format("vocabulary of {} and context of {} make no sense",
                                    hello.model.vocab_size, hello.model.max_context),
                        turn);
  if (target_.is_here()) target_lost(unavailable("the target group was restarted"), turn);
  target_.join(peer, std::move(hello));
  target_status_ = {};
  join_deadline_.reset();
  turn.send(peer, welcome);
  for (auto& [early, worker] : pool_.take_early()) worker_joined(early, worker, turn);
}

// Every open request ends with a typed error; new ones are refused until a target joins again.
void Protocol::target_lost(Status why, Turn& turn) {
  target_.leave();
  target_status_ = std::move(why);
  for (auto& [id, live] : requests_.all()) {
    live->sequence.target.open = false;
    if (!live->finished()) finish(*live, FinishReason::kError, target_status_, turn);
  }
  requests_.sweep();
}

// A worker that says hello again lost what it held: its sequences are opened afresh.
void Protocol::worker_joined(PeerId peer, Hello& hello, Turn& turn) {
  hello.slices = {};  // a target group's
  if (!target_.is_here()) {
    if (!pool_.keep_early(peer, hello))
      refuse_hello(peer, "too many workers wait for the target group", turn);
    return;
  }
  worker_lost(peer, turn);
  if (target_.drafts())
    return refuse_hello(peer, "the target drafts itself, with a head beside it; no draft worker is needed",
                        turn);
  if (Status status = WorkerPool::check(hello, target_.model()); !status.ok())
    return refuse_hello(peer, status.message(), turn);
  if (pool_.is_full())
    return refuse_hello(peer, fmt::format("there are {} draft workers already", pool_.size()), turn);
  const DrafterKind kind = target_.costs.add_kind(hello.model.fingerprint);
  pool_.join(peer, std::move(hello), kind);
  turn.send(peer, Welcome{.accepted = true,
                          .reason = {},
                          .target = target_.model(),
                          .eos_ids = options_.eos_ids,
                          .slices = target_.slices()});
}

// The kind it was of, if it was a worker.
std::optional<DrafterKind> Protocol::forget_worker(PeerId peer, Turn& turn) {
  const auto kind = pool_.remove(peer);
  if (!kind) return std::nullopt;
  for (auto& [id, live] : requests_.all()) {
    if (live->link.peer != peer) continue;
    live->link = {};
    if (live->state == RequestState::kDrafting) live->go_plain(turn.now());
  }
  return kind;
}

void Protocol::worker_lost(PeerId peer, Turn& turn) {
  const auto kind = forget_worker(peer, turn);
  if (!kind) return;
  ++totals_.workers_lost;
  ++totals_.drafters[*kind].lost;
}

void Protocol::worker_left(PeerId peer, Turn& turn) {
  const auto kind = forget_worker(peer, turn);
  if (!kind) return;
  ++totals_.workers_left;
  ++totals_.drafters[*kind].left;
}

void Protocol::receive(PeerId peer, Failure& message, Turn& turn) {
  if (target_.is(peer)) return target_lost(unavailable("the target group failed: " + message.message), turn);
  worker_lost(peer, turn);
}

void Protocol::receive(PeerId peer, Shutdown&, Turn& turn) {
  if (target_.is(peer)) return target_lost(unavailable("the target group left"), turn);
  worker_left(peer, turn);
  turn.send(peer, Shutdown{});  // goodbye: nothing of what it said is unread, and it may go
}

void Protocol::on(PeerLost& event, Turn& turn) {
  if (target_.is(event.peer)) return target_lost(unavailable("the target group is gone: " + event.why), turn);
  worker_lost(event.peer, turn);
}

// The worker's queue was full: it is left alone for a while, then told again what it missed.
void Protocol::on(SendFailed& event, Turn& turn) {
  ++totals_.sends_failed;
  if (target_.is(event.peer))
    return target_lost(
        unavailable("the target group takes no messages" + (event.why.empty() ? "" : ": " + event.why)),
        turn);
  PoolWorker* worker = pool_.find(event.peer);
  if (!worker) return;
  const auto* propose = std::get_if<Propose>(&event.message);
  if (propose && propose->sent_after_us > 0) return;  // its queue is full of what was said again
  pool_.missed(*worker, target_.times.draft_timeout(), turn.now());
  if (const auto* close = std::get_if<Close>(&event.message)) return worker->keep_close(close->sequence);
  const auto* open = std::get_if<Open>(&event.message);
  LiveRequest* live = requests_.find(propose ? propose->sequence : open ? open->sequence : SequenceId());
  if (!live || live->link.peer != event.peer) return;
  live->link.opened = false;
  live->link.shadow.reset();
  if (live->state == RequestState::kDrafting) live->go_plain(turn.now());
}

// ---- time -----------------------------------------------------------------------------------------------

void Protocol::expire(Turn& turn) {
  if (join_deadline_ && turn.now() >= *join_deadline_) {
    join_deadline_.reset();
    target_lost(deadline_exceeded(
                    fmt::format("no target group joined within {} ms", options_.target_join_timeout.count())),
                turn);
  }
  const auto* plan = target_.planner.outstanding();
  if (plan && turn.now() >= plan->sent_at + target_.times.step_timeout()) {
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(turn.now() - plan->sent_at);
    target_lost(deadline_exceeded(fmt::format("the target group did not answer step {} within {} ms",
                                              plan->step, waited.count())),
                turn);
  }
  rounds_.expire(requests_.all(), turn);
}

}  // namespace outrider
