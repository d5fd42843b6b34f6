// The second half of a round: verdicts in, tokens committed and streamed.
#include <algorithm>
#include <limits>

#include "coordinator/protocol.h"

namespace outrider {
namespace {

constexpr double kEwmaWeight = 0.1;

void average(double* ewma, Clock::duration sample) {
  const double ns = static_cast<double>(std::chrono::nanoseconds(sample).count());
  *ewma = *ewma == 0 ? ns : (1 - kEwmaWeight) * *ewma + kEwmaWeight * ns;
}

int32_t length(const std::vector<TokenId>& ids) { return static_cast<int32_t>(ids.size()); }

}  // namespace

Status Protocol::check_logprobs(const PositionLogprobs& at, TokenId token, int32_t most) const {
  const int32_t vocab_size = target_->hello.model.vocab_size;
  const auto is_bad = [&](const TokenLogprob& t) {
    return t.id.value() < 0 || t.id.value() >= vocab_size || t.logprob > std::numeric_limits<float>::max();
  };
  if (at.chosen.id != token || is_bad(at.chosen) || std::any_of(at.top.begin(), at.top.end(), is_bad) ||
      at.top.size() > static_cast<size_t>(most))
    return malformed(fmt::format("brings logprobs of token {} and {} others that cannot be of token {}",
                                 at.chosen.id.value(), at.top.size(), token.value()));
  return {};
}

Status Protocol::check_verdict(const LiveRequest& live, const Verdict& verdict) const {
  const RoundInFlight& round = live.round;
  if (verdict.sequence != live.id() || verdict.epoch != live.sequence.target.epoch ||
      verdict.round != round.number || verdict.base != Position(live.sequence.target.committed))
    return malformed("names another round");
  if (verdict.status != VerdictStatus::kOk) return {};
  const int32_t tested = verdict.draft_lost ? 0 : length(round.draft.ids);
  if (verdict.accepted_count < 0 || verdict.accepted_count > tested)
    return malformed(fmt::format("accepts {} of {} tokens", verdict.accepted_count, round.draft.ids.size()));
  if (verdict.next.value() < 0 || verdict.next.value() >= target_->hello.model.vocab_size)
    return malformed(fmt::format("next token {} is outside the vocabulary", verdict.next.value()));
  const size_t wanted =
      live.request.sampling.logprobs >= 0 ? static_cast<size_t>(verdict.accepted_count) + 1 : 0;
  if (verdict.logprobs.size() != wanted)
    return malformed(fmt::format("brings {} logprobs instead of {}", verdict.logprobs.size(), wanted));
  for (size_t i = 0; i < wanted; ++i) {
    const auto accepted = static_cast<size_t>(verdict.accepted_count);
    const TokenId token = i < accepted ? round.draft.ids[i] : verdict.next;
    RETURN_IF_ERROR(check_logprobs(verdict.logprobs[i], token, live.request.sampling.logprobs));
  }
  return {};
}

// One verdict per sampling entry, in plan order. The target is trusted to be right, not to be free of bugs.
Status Protocol::check_result(const StepResult& result) const {
  if (result.step > plan_->step) return malformed("it was never planned");
  size_t at = 0;
  for (const PlannedEntry& entry : plan_->entries) {
    if (!entry.sampling) continue;
    if (at == result.verdicts.size()) return malformed("verdicts are missing");
    RETURN_IF_ERROR(check_verdict(*live_.at(entry.sequence), result.verdicts[at])
                        .in(fmt::format("verdict of request {}", entry.sequence.value())));
    ++at;
  }
  return at == result.verdicts.size() ? Status() : malformed("there are too many verdicts");
}

void Protocol::receive(PeerId peer, StepResult& message) {
  if (!target_ || target_->peer != peer) return unexpected(peer);
  if (!plan_ || message.step < plan_->step) {
    ++totals_.stale_results;
    return;
  }
  if (Status status = check_result(message); !status.ok())
    return target_lost(
        status.in(fmt::format("the target group broke the protocol: result of step {}", message.step)));
  const OutstandingPlan done = *std::exchange(plan_, std::nullopt);
  average(&step_ewma_ns_, now_ - done.sent_at);
  if (done.prefills) {
    prompt_ns_ += static_cast<double>(std::chrono::nanoseconds(now_ - done.sent_at).count());
    prompt_rows_ += done.rows;
  } else {
    const double seconds = std::chrono::duration<double>(now_ - done.sent_at).count();
    cost_.observe_verify(done.rows, done.context, seconds);
    for (auto& [kind, cost] : costs_) cost.observe_verify(done.rows, done.context, seconds);
  }
  totals_.forward_ns += reported_ns(message.forward_ns);
  totals_.verify_ns += reported_ns(message.verify_ns);
  totals_.commit_ns += reported_ns(message.commit_ns);
  size_t at = 0;
  for (const PlannedEntry& entry : done.entries) {
    LiveRequest& live = *live_.at(entry.sequence);
    if (entry.sampling) {
      apply_verdict(live, entry, message.verdicts[at++], message);
      learn_round_time(live.round, done.prefills);
    } else {
      live.sequence.target_prefilled(entry.input_count);
      if (!live.finished()) live.become(RequestState::kPrefill);
    }
  }
}

// For the deadlines of rounds to come. A round in which the target or the worker reads prompts is much
// longer: those before the first without them are forgotten with it.
void Protocol::learn_round_time(const RoundInFlight& round, bool prefills) {
  if (round.draft.ids.empty()) return;
  const bool ordinary = !prefills && !round.read_prompt;
  if (ordinary && !std::exchange(had_ordinary_round_, true)) round_ewma_ns_ = 0;
  average(&round_ewma_ns_, now_ - round.begun_at);
}

// A finished request (cancelled while its pass ran) only follows the target's state until it is closed there.
void Protocol::apply_verdict(LiveRequest& live, const PlannedEntry& entry, Verdict& verdict,
                             const StepResult& result) {
  if (verdict.status == VerdictStatus::kNonFinite) {  // the pass is undone: C, kv and epoch stay
    ++totals_.nonfinite_verdicts;
    if (!live.finished())
      finish(live, FinishReason::kError,
             unavailable(fmt::format("the target model gave non-finite logits at position {}",
                                     verdict.base.value())));
    return;
  }
  if (verdict.draft_lost) lose_draft(live, verdict.link_lost);
  const int32_t drafted = length(live.round.draft.ids);
  live.sequence.target_verified(drafted, verdict.accepted_count);
  if (live.finished()) return;
  const int32_t emitted_before = live.sequence.emitted();
  const auto reason = commit(live, verdict);
  const int32_t emitted = live.sequence.emitted() - emitted_before;
  if (!entry.first) teach(live, verdict, emitted);
  compare_shadow(live);
  record(live, entry, verdict, emitted, result);
  if (reason) return finish(live, *reason);
  CHECK(live.sequence.committed() == live.sequence.target.committed, "C={} but the target holds {}",
        live.sequence.committed(), live.sequence.target.committed);
  live.become(RequestState::kIdle);
}

// The round went on as a plain one. Slices that do not come once may be cut off for good: from now on the
// rows of who sent them pass here, unless they were under way from device to device: then it takes its
// sockets. Nor is a worker asked for states again whose states were no good. The sequence may be another
// worker's by now.
void Protocol::lose_draft(LiveRequest& live, bool link_lost) {
  const bool hidden = live.round.draft.q_kind == QKind::kHidden;
  totals_.drafts_used -= live.round.has_draft;
  drop(hidden ? DropReason::kBadQ : DropReason::kSliceMissing);
  live.round.has_draft = false;
  live.round.draft.ids.clear();
  for (auto& [peer, worker] : workers_) {
    if (worker.hello.generation != live.round.worker) continue;
    if (hidden)
      worker.hello.head_fingerprint = 0;
    else
      worker.slices &= link_lost;
  }
}

// Tokens beyond the end of the request were never asked for, so their tests count for nothing.
void Protocol::teach(LiveRequest& live, const Verdict& verdict, int32_t emitted) {
  const int32_t drafted = length(live.round.draft.ids);
  const bool cut = emitted <= verdict.accepted_count;
  live.gamma->update({.proposed = live.round.gamma,
                      .drafted = cut ? emitted : drafted,
                      .accepted = cut ? emitted : verdict.accepted_count,
                      .round_ns = std::chrono::nanoseconds(now_ - live.round.begun_at).count(),
                      .batch_size = static_cast<int32_t>(running_),
                      .cost = &cost_of(live.round.kind)});
  if (live.round.kind == 0) return;
  DrafterTotals& drafter = totals_.drafters[live.round.kind];
  const double seconds = std::chrono::duration<double>(now_ - live.round.begun_at).count();
  ++drafter.rounds;
  drafter.drafted += drafted;
  drafter.accepted += verdict.accepted_count;
  drafter.emitted += emitted;
  drafter.round_seconds += seconds;
  if (live.round.read_prompt) return;  // once for every sequence and drafter, and no measure of what follows
  live.choice.add(live.round.kind, emitted, seconds);
  goodput_[live.round.kind].add(emitted, seconds);
}

// Appends accepted tokens and `next` in order, up to the first that ends the request. What lies beyond never
// existed.
std::optional<FinishReason> Protocol::commit(LiveRequest& live, Verdict& verdict) {
  const int32_t drafted = length(live.round.draft.ids);
  std::vector<TokenId> tokens(live.round.draft.ids.begin(),
                              live.round.draft.ids.begin() + verdict.accepted_count);
  tokens.push_back(verdict.next);
  if (verdict.accepted_count < drafted) live.sequence.bump_epoch();
  Emit emit{.request = live.id(), .ids = {}, .logprobs = {}, .text = {}};
  std::optional<FinishReason> reason;
  for (size_t i = 0; i < tokens.size() && !reason; ++i) {
    live.sequence.append(tokens[i]);
    emit.ids.push_back(tokens[i]);
    if (!verdict.logprobs.empty()) emit.logprobs.push_back(std::move(verdict.logprobs[i]));
    if (live.text) emit.text += live.text->append(tokens[i]);
    reason = reason_to_finish(live, tokens[i]);
  }
  if (reason && live.text && !live.text->stopped()) emit.text += live.text->flush();
  live.metrics.tokens_emitted(length(emit.ids), now_);
  actions_->push_back(std::move(emit));
  return reason;
}

std::optional<FinishReason> Protocol::reason_to_finish(const LiveRequest& live, TokenId last) const {
  const auto& eos = options_.eos_ids;
  if (!live.request.ignore_eos && std::find(eos.begin(), eos.end(), last) != eos.end())
    return FinishReason::kStop;
  if (live.text && live.text->stopped()) return FinishReason::kStop;
  if (live.sequence.emitted() >= live.request.max_tokens) return FinishReason::kLength;
  if (live.sequence.committed() >= max_context()) return FinishReason::kLength;
  return std::nullopt;
}

void Protocol::record(LiveRequest& live, const PlannedEntry& entry, const Verdict& verdict, int32_t emitted,
                      const StepResult& result) {
  const RoundInFlight& round = live.round;
  const int32_t drafted = length(round.draft.ids);
  RoundSums sums;
  sums.add_round(drafted, verdict.accepted_count, emitted, entry.first);
  const PhaseTimes phases{.draft_wait = round.decided_at - round.begun_at,
                          .plan_wait = round.planned_at - round.decided_at,
                          .verify = now_ - round.planned_at};
  live.metrics.rounds.add(sums);
  live.metrics.phases.add(phases);
  totals_.rounds.add(sums);
  totals_.phases.add(phases);
  const auto& eos_ids = options_.eos_ids;
  const TokenId guess = round.draft.guess;
  std::optional<bool> guess_was_right;
  if (guess.value() >= 0 && verdict.base.value() > live.sequence.prompt_length())
    guess_was_right = guess == live.sequence.ids()[static_cast<size_t>(verdict.base.value()) - 1];
  actions_->push_back(RoundDone{
      .request = live.id(),
      .round = round.number,
      .base = verdict.base,
      .step = result.step,
      .gamma = round.gamma,
      .drafted = drafted,
      .accepted_count = verdict.accepted_count,
      .emitted = emitted,
      .eos = round.draft.eos,
      .guess_was_right = guess_was_right,
      .guess_was_eos = std::find(eos_ids.begin(), eos_ids.end(), guess) != eos_ids.end(),
      .draft_ns = round.draft.ingest_ns + round.draft.draft_ns,
      .prepare_ns = reported_ns(round.draft.preparation.busy_ns),
      .target_ns =
          reported_ns(result.forward_ns) + reported_ns(result.verify_ns) + reported_ns(result.commit_ns),
      .commit_ns = reported_ns(result.commit_ns),
      .begun_at = round.begun_at,
      .decided_at = round.decided_at,
      .planned_at = round.planned_at,
      .done_at = now_});
}

}  // namespace outrider
