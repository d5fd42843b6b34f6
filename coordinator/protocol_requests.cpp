// The life of a request outside its rounds: its checks, when and in which group it begins, and its end.
#include <algorithm>
#include <utility>

#include "coordinator/protocol.h"

namespace outrider {

Status Protocol::check_request(const Request& request) const {
  if (request.prompt.empty()) return invalid_argument("the prompt has no tokens");
  if (request.max_tokens < 1)
    return invalid_argument(fmt::format("max_tokens={} must be at least 1", request.max_tokens));
  if (!request.stop.empty() && !tokenizer_)
    return unsupported("stop strings need a tokenizer; load one or send no stop strings");
  RETURN_IF_ERROR(queue_.check_room(request.prompt.size()));
  return target_status_;
}

// Checks that need the target's properties.
Status Protocol::check_fits(LiveRequest& live, const TargetGroup& target) const {
  const Sequence& sequence = live.sequence;
  const int32_t vocab_size = target.model().vocab_size;
  for (const TokenId id : sequence.ids()) {
    if (id.value() < 0 || id.value() >= vocab_size)
      return invalid_argument(
          fmt::format("prompt id {} is outside the vocabulary of {}", id.value(), vocab_size));
  }
  if (sequence.committed() >= target.max_context() && target.max_context() == target.kv.tokens())
    return invalid_argument(
        fmt::format("a prompt of {} tokens leaves no room in a KV cache of {}; shorten it, or start with "
                    "more of --kv-cache-tokens",
                    sequence.committed(), target.max_context()));
  if (sequence.committed() >= target.max_context())
    return invalid_argument(fmt::format("a prompt of {} tokens leaves no room in a context of {}; shorten it",
                                        sequence.committed(), target.max_context()));
  if (live.constraint && live.constraint->vocab_size() != vocab_size)
    return invalid_argument(fmt::format("the request's grammar is of a vocabulary of {} tokens, not of {}",
                                        live.constraint->vocab_size(), vocab_size));
  const auto open = encode(live.open(), {});
  if (!open.ok()) return open.status().in("the request cannot be sent to the target group");
  live.open_bytes = open->size();
  if (!target.planner.open_fits(live.open_bytes))
    return invalid_argument(fmt::format(
        "a prompt of {} tokens and {} biases does not fit a message of {} bytes", sequence.committed(),
        live.request.sampling.logit_bias.size(), options_.max_bytes_per_step));
  return {};
}

void Protocol::on(Submit& event, Turn& turn) {
  CHECK(!find(event.id), "request {} is already open", event.id.value());
  totals_.count_submitted(turn.now());
  if (Status status = check_request(event.request); !status.ok())
    return refuse(event, std::move(status), turn);
  LiveRequest& live = queue_.add(event.id, std::move(event.request));
  live.metrics.submitted_at = std::min(live.request.asked_at.value_or(turn.now()), turn.now());
  live.metrics.prompt_tokens = live.sequence.prompt_length();
}

void Protocol::refuse(Submit& event, Status error, Turn& turn) {
  ++totals_.refused;
  Finish refusal{
      .request = event.id, .reason = FinishReason::kError, .error = std::move(error), .metrics = {}};
  refusal.metrics.submitted_at = turn.now();
  refusal.metrics.finished_at = turn.now();
  totals_.count_finished(FinishReason::kError, turn.now());
  turn.add(std::move(refusal));
}

void Protocol::on(Cancel& event, Turn& turn) {
  LiveRequest* live = this->live(event.id);
  if (live && !live->finished()) finish(*live, FinishReason::kCancelled, {}, turn);
}

std::unique_ptr<GammaPolicy> Protocol::make_gamma(const LiveRequest& live) const {
  return live.request.gamma ? live.request.gamma() : gamma_();
}

const LiveRequest* Protocol::find(SequenceId id) const {
  const LiveRequest* waits = queue_.find(id);
  return waits ? waits : groups_.find(id);
}

// Admits requests in order of arrival, each to the most suitable group with a free place.
void Protocol::admit(Turn& turn) {
  while (LiveRequest* first = queue_.first()) {
    ServingGroup* group = groups_.any_here() ? handoffs_.place_for(*first) : nullptr;
    if (!group) return;
    if (Status status = check_fits(*first, group->target); !status.ok())
      finish(*first, FinishReason::kError, std::move(status), turn);
    else
      begin(*group, group->requests.add(queue_.take(first->id())), turn);
  }
}

void Protocol::begin(ServingGroup& group, LiveRequest& live, Turn& turn) {
  mark_dirty(group);
  live.group = group.target.index;
  live.become(RequestState::kPrefill);
  if (group.target.only_prefills()) handoffs_.begin(live);
  totals_.prompt_tokens += live.sequence.prompt_length();
  totals_.constrained_requests += live.constraint != nullptr;
  ++totals_.group(live.group).requests;
  live.gamma = make_gamma(live);
  live.ready_at = turn.now();
  live.metrics.begun_at = turn.now();
  totals_.queued.add(turn.now() - live.metrics.submitted_at);
  totals_.prompt_lengths.add(live.sequence.prompt_length());
  if (tokenizer_)
    live.text =
        std::make_unique<TextStream>(*tokenizer_, live.sequence.ids(), live.request.stop, live.request.shown);
}

// Ends the request and reports it to the client.
void Protocol::finish(LiveRequest& live, FinishReason reason, Status error, Turn& turn) {
  if (live.round.has_draft && !live.round.used) totals_.drop(DropReason::kNotUsed);
  std::unique_ptr<LiveRequest> waited;  // owns a finished request that was still queued
  if (ServingGroup* group = groups_.of(live))
    group->requests.finish(live);
  else
    waited = queue_.take(live.id());
  pool_.close(live, turn);
  live.metrics.finished_at = turn.now();
  totals_.count_finished(reason, turn.now());
  totals_.gaps.add(live.metrics.gaps);
  totals_.bursts.add(live.metrics.bursts);
  if (reason == FinishReason::kStop || reason == FinishReason::kLength) {
    totals_.e2e.add(turn.now() - live.metrics.submitted_at);
    totals_.generation_lengths.add(live.sequence.emitted());
  }
  if (live.metrics.first_token_at) totals_.ttft.add(*live.metrics.first_token_at - live.metrics.submitted_at);
  const bool at_stop = reason == FinishReason::kStop && live.text;
  turn.add(Finish{.request = live.id(),
                  .reason = reason,
                  .error = std::move(error),
                  .metrics = live.metrics,
                  .stop = at_stop ? live.text->matched() : std::string()});
}

}  // namespace outrider
