// Events, and the life of a request from Submit to Finish.
#include "coordinator/protocol.h"

#include <algorithm>

#include "comm/message_check.h"

namespace outrider {
namespace {

constexpr auto kMaxContext =
    static_cast<int32_t>(WireLimits{}.ids);  // a list of ids in a message holds no more

}  // namespace

Protocol::Protocol(ProtocolOptions options, GammaPolicyFactory gamma, const Tokenizer* tokenizer)
    : options_(std::move(options)), gamma_(std::move(gamma)), tokenizer_(tokenizer) {
  CHECK(options_.max_num_seqs > 0 && options_.prefill_chunk > 0 && options_.max_queued > 0, "empty limits");
  CHECK(options_.max_rows_per_step >= 8, "max_rows_per_step={} leaves no room", options_.max_rows_per_step);
}

std::vector<Action> Protocol::step(Event event, Clock::time_point now) {
  std::vector<Action> actions;
  now_ = now;
  actions_ = &actions;
  if (!target_ && !join_deadline_ && target_status_.ok()) join_deadline_ = now + options_.target_join_timeout;
  std::visit([this](auto& e) { on(e); }, event);
  pump();
  actions_ = nullptr;
  return actions;
}

// After every event: what time has ended, who may start, and whether the idle target gets a plan.
void Protocol::pump() {
  expire();
  repeat_overdue();
  resume_workers();
  admit();
  assign_workers();
  for (auto& [id, live] : live_) {
    if (live->state == RequestState::kIdle) begin_round(*live);
  }
  plan();
  sweep();
}

std::optional<Clock::time_point> Protocol::next_deadline() const {
  std::optional<Clock::time_point> earliest;
  const auto consider = [&](Clock::time_point at) {
    if (at > now_ && (!earliest || at < *earliest)) earliest = at;
  };
  if (join_deadline_) consider(*join_deadline_);
  if (plan_) consider(plan_->sent_at + step_timeout());
  for (const auto& [id, live] : live_) {
    if (live->link.shadow && !live->link.shadow->ids) consider(live->link.shadow->deadline);
    if (live->awaits_draft() && live->link.proposal.repeat_after.count() > 0)
      consider(live->link.proposal.repeat_at);
    if (live->state != RequestState::kDrafting) continue;
    consider(live->round.draft_deadline);
    if (!plan_) consider(live->round.batch_deadline);
  }
  for (const auto& [peer, worker] : workers_) {
    if (needs_resuming(peer, worker)) consider(worker.silent ? worker.silent_until : worker.resume_at);
  }
  return earliest;
}

const LiveRequest* Protocol::find(SequenceId id) const {
  const auto at = live_.find(id);
  return at == live_.end() ? nullptr : at->second.get();
}

// ---- requests -------------------------------------------------------------------------------------------

int32_t Protocol::max_context() const {
  const int32_t supported = target_->hello.model.max_context;
  const int32_t possible = std::min(supported, kMaxContext);
  return options_.max_context > 0 ? std::min(options_.max_context, possible) : possible;
}

Status Protocol::check_request(const Request& request) const {
  if (request.prompt.empty()) return invalid_argument("the prompt has no tokens");
  if (request.max_tokens < 1)
    return invalid_argument(fmt::format("max_tokens={} must be at least 1", request.max_tokens));
  if (!request.stop.empty() && !tokenizer_)
    return unsupported("stop strings need a tokenizer; load one or send no stop strings");
  if (queue_.size() >= static_cast<size_t>(options_.max_queued) ||
      queued_tokens_ + static_cast<int64_t>(request.prompt.size()) > options_.max_queued_tokens)
    return resource_exhausted(fmt::format(
        "the queue is full ({} requests, {} prompt tokens); try again later", queue_.size(), queued_tokens_));
  return target_status_;
}

// What can only be known once the target is there.
Status Protocol::check_fits(LiveRequest& live) const {
  const Sequence& sequence = live.sequence;
  const int32_t vocab_size = target_->hello.model.vocab_size;
  for (const TokenId id : sequence.ids()) {
    if (id.value() < 0 || id.value() >= vocab_size)
      return invalid_argument(
          fmt::format("prompt id {} is outside the vocabulary of {}", id.value(), vocab_size));
  }
  if (sequence.committed() >= max_context())
    return invalid_argument(fmt::format("a prompt of {} tokens leaves no room in a context of {}; shorten it",
                                        sequence.committed(), max_context()));
  const auto open = encode(live.open(), {});
  if (!open.ok()) return open.status().in("the request cannot be sent to the target group");
  live.open_bytes = open->size();
  if (kPlanBytes + kPlanEntryBytes + live.open_bytes > options_.max_bytes_per_step)
    return invalid_argument(fmt::format(
        "a prompt of {} tokens and {} biases does not fit a message of {} bytes", sequence.committed(),
        live.request.sampling.logit_bias.size(), options_.max_bytes_per_step));
  return {};
}

void Protocol::on(Submit& event) {
  CHECK(!live_.contains(event.id), "request {} is already open", event.id.value());
  ++totals_.submitted;
  if (!totals_.first_submit_at) totals_.first_submit_at = now_;
  if (Status status = check_request(event.request); !status.ok()) return refuse(event, std::move(status));
  auto live = std::make_unique<LiveRequest>(event.id, std::move(event.request));
  live->metrics.submitted_at = now_;
  live->metrics.prompt_tokens = live->sequence.prompt_length();
  queued_tokens_ += live->sequence.prompt_length();
  queue_.push_back(event.id);
  live_.emplace(event.id, std::move(live));
}

void Protocol::refuse(Submit& event, Status error) {
  ++totals_.refused;
  ++totals_.finished[static_cast<size_t>(FinishReason::kError)];
  Finish refusal{
      .request = event.id, .reason = FinishReason::kError, .error = std::move(error), .metrics = {}};
  refusal.metrics.submitted_at = now_;
  refusal.metrics.finished_at = now_;
  totals_.last_finish_at = now_;
  actions_->push_back(std::move(refusal));
}

void Protocol::on(Cancel& event) {
  const auto at = live_.find(event.id);
  if (at != live_.end() && !at->second->finished()) finish(*at->second, FinishReason::kCancelled);
}

void Protocol::admit() {
  if (!target_) return;
  size_t places = static_cast<size_t>(options_.max_num_seqs);
  if (target_->hello.max_sequences > 0)
    places = std::min(places, static_cast<size_t>(target_->hello.max_sequences));
  while (!queue_.empty() && running_ < places) {
    LiveRequest& live = *live_.at(queue_.front());
    if (Status status = check_fits(live); !status.ok()) {
      finish(live, FinishReason::kError, std::move(status));
      continue;
    }
    queue_.pop_front();
    queued_tokens_ -= live.sequence.prompt_length();
    live.become(RequestState::kPrefill);
    ++running_;
    totals_.prompt_tokens += live.sequence.prompt_length();
    live.gamma = live.request.gamma ? live.request.gamma() : gamma_();
    live.ready_at = now_;
    if (tokenizer_)
      live.text = std::make_unique<TextStream>(*tokenizer_, live.sequence.ids(), live.request.stop);
  }
}

// Tells the client. The sequence stays until the target was told to close it, because the state hash includes
// it.
void Protocol::finish(LiveRequest& live, FinishReason reason, Status error) {
  if (live.state == RequestState::kQueued) {
    std::erase(queue_, live.id());
    queued_tokens_ -= live.sequence.prompt_length();
  } else {
    --running_;
  }
  if (live.state == RequestState::kReady && live.round.has_draft) drop(DropReason::kNotUsed);
  live.become(RequestState::kFinished);
  close_at_worker(live);
  live.metrics.finished_at = now_;
  totals_.last_finish_at = now_;
  ++totals_.finished[static_cast<size_t>(reason)];
  totals_.gaps.add(live.metrics.gaps);
  totals_.bursts.add(live.metrics.bursts);
  if (reason == FinishReason::kStop || reason == FinishReason::kLength)
    totals_.e2e.add(now_ - live.metrics.submitted_at);
  if (live.metrics.first_token_at) totals_.ttft.add(*live.metrics.first_token_at - live.metrics.submitted_at);
  actions_->push_back(
      Finish{.request = live.id(), .reason = reason, .error = std::move(error), .metrics = live.metrics});
}

void Protocol::sweep() {
  std::erase_if(
      live_, [](const auto& item) { return item.second->finished() && !item.second->sequence.target.open; });
}

// ---- messages -------------------------------------------------------------------------------------------

void Protocol::on(MessageReceived& event) {
  if (const auto* hello = std::get_if<Hello>(&event.message);
      hello && hello->role == Role::kTarget && event.door == Door::kOutside)
    return refuse_hello(event.peer, "only the job itself starts its target group; connect as a draft worker");
  if (const auto at = workers_.find(event.peer); at != workers_.end()) at->second.silent = false;
  frame_bytes_ = event.bytes;
  std::visit([&](auto& message) { receive(event.peer, message); }, event.message);
}

void Protocol::receive(PeerId peer, Failure& message) {
  if (target_ && target_->peer == peer)
    return target_lost(unavailable("the target group failed: " + legible(message.message)));
  worker_lost(peer);
}

// Not inline: GCC 12 then takes members of other alternatives for uninitialised ones.
void Protocol::send(PeerId to, Message message) { actions_->push_back(Send{to, std::move(message)}); }

void Protocol::receive(PeerId peer, Shutdown&) {
  if (target_ && target_->peer == peer) return target_lost(unavailable("the target group left"));
  worker_left(peer);
  send(peer, Shutdown{});  // goodbye: nothing of what it said is unread, and it may go
}

void Protocol::on(PeerLost& event) {
  if (target_ && target_->peer == event.peer)
    return target_lost(unavailable("the target group is gone: " + event.why));
  worker_lost(event.peer);
}

// ---- time -----------------------------------------------------------------------------------------------

Clock::duration Protocol::step_timeout() const {
  const auto scaled = std::chrono::nanoseconds(static_cast<int64_t>(50 * step_ewma_ns_));
  return std::max<Clock::duration>(options_.step_timeout_min, scaled);
}

void Protocol::expire() {
  if (join_deadline_ && now_ >= *join_deadline_) {
    join_deadline_.reset();
    target_lost(deadline_exceeded(
        fmt::format("no target group joined within {} ms", options_.target_join_timeout.count())));
  }
  if (plan_ && now_ >= plan_->sent_at + step_timeout()) {
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(now_ - plan_->sent_at);
    target_lost(deadline_exceeded(
        fmt::format("the target group did not answer step {} within {} ms", plan_->step, waited.count())));
  }
  for (auto& [id, live] : live_) {
    auto& shadow = live->link.shadow;
    if (shadow && !shadow->ids && now_ >= shadow->deadline) {
      ++totals_.draft_deadlines_missed;
      if (Worker* worker = worker_of(*live)) worker_missed(*worker);
      shadow.reset();
    }
    if (live->state != RequestState::kDrafting || now_ < live->round.draft_deadline) continue;
    ++totals_.draft_deadlines_missed;
    const bool may_be_late = is_match_rule(live->request.sampling.rule);
    if (!may_be_late) ++totals_.liveness_timeouts;
    if (Worker* worker = worker_of(*live))
      worker_missed(*worker, may_be_late ? draft_timeout() : liveness_timeout());
    go_plain(*live);
  }
}

}  // namespace outrider
