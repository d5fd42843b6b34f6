// The first half of a round: gamma, Propose, Draft.
#include <algorithm>

#include "cluster/simulation/acceptance_process.h"
#include "coordinator/draft_check.h"
#include "coordinator/protocol.h"

namespace outrider {
namespace {

// A worker that far behind reads as long as one with a new prompt.
constexpr int32_t kCatchUpTokens = 64;
// Of a Propose, before they become rarer: where half of all messages are lost, one in a hundred needs more.
constexpr int32_t kRepeatsAtOnePace = 16;
// A worker that takes longer to read is too slow to wait for.
constexpr std::chrono::milliseconds kReadingTimePerToken{10};

int32_t length(const std::vector<TokenId>& ids) { return static_cast<int32_t>(ids.size()); }

Clock::duration busy_time(const Draft& draft) {
  return std::chrono::nanoseconds(draft.ingest_ns + draft.draft_ns);
}

}  // namespace

// What the request may still emit, the context of both models, and room in one pass.
int32_t Protocol::gamma_limit(const LiveRequest& live, const Worker& worker) const {
  const int32_t committed = live.sequence.committed();
  const int32_t decode_rows = options_.max_rows_per_step - options_.max_rows_per_step / 4;
  return std::max(0, std::min({options_.gamma_max, live.request.max_tokens - live.sequence.emitted() - 1,
                               max_context() - committed - 1, worker.hello.model.max_context - committed,
                               decode_rows - 1}));
}

// Both ends make q of the logits alone, with the same head. Rows behind filters are short as they are.
bool Protocol::sends_states(const LiveRequest& live, const Worker& worker) const {
  const uint64_t head = target_->hello.head_fingerprint;
  return head != 0 && worker.hello.head_fingerprint == head && is_plain_softmax(live.request.sampling);
}

QKind Protocol::q_kind(const LiveRequest& live, const Worker& worker) const {
  if (!needs_q(live.request.sampling.rule)) return QKind::kNone;
  if (options_.q_kind == QKind::kHidden) return sends_states(live, worker) ? QKind::kHidden : QKind::kSparse;
  const bool has_doors = !target_->hello.slices.of_rank.empty();
  return options_.q_kind == QKind::kDense && has_doors && worker.slices ? QKind::kSlices : options_.q_kind;
}

void Protocol::ask_for_q(const LiveRequest& live, const Worker& worker, Propose& message) const {
  message.q_kind = q_kind(live, worker);
  message.row_bytes = message.q_kind == QKind::kSparse ? options_.row_bytes : 0;
  message.code_bits = message.q_kind == QKind::kHidden ? options_.code_bits : 0;
}

// Under match rules a round accepts what the target would have written anyway.
bool Protocol::tests_shadows(const LiveRequest& live) const {
  return is_match_rule(live.request.sampling.rule);
}

GammaContext Protocol::gamma_context(const LiveRequest& live, const Worker& worker) const {
  return {.limit = gamma_limit(live, worker),
          .batch_size = static_cast<int32_t>(running_),
          .context_length = live.sequence.committed(),
          .cost = &cost_of(worker.kind),
          .ahead = options_.pipeline != Pipeline::kLockstep,
          .shadows = tests_shadows(live) ? Shadows::kTests : Shadows::kCosts,
          .shadow_out = live.link.shadow.has_value()};
}

// A policy is asked only when a worker could draft, so its decisions follow the sequence's own rounds.
void Protocol::begin_round(LiveRequest& live) {
  RoundInFlight& round = live.round;
  round = RoundInFlight{};
  round.number = live.sequence.begin_round();
  round.begun_at = now_;
  live.link.resyncs = 0;
  const Worker* worker = worker_of(live);
  if (worker && live.link.opened && worker->usable(now_)) {
    round.kind = worker->kind;
    const GammaContext context = gamma_context(live, *worker);
    round.gamma = std::clamp(live.gamma->next(context), 0, context.limit);
    const int32_t shadow = round.gamma > 0 ? 0 : std::min(live.gamma->shadow(), context.limit);
    if (round.gamma > 0) {
      ask(live);
    } else if (shadow > 0 && !live.link.shadow) {
      ask_aside(live, shadow);
    } else if (reads_along(live, *worker)) {
      propose(live, 0, options_.pipeline);
    }
  }
  if (round.gamma == 0) return decide(live);
  ++totals_.proposals;
  live.become(RequestState::kDrafting);
}

// Who drafts for others just now can as well read what this sequence wrote. Else a worker is left asleep, and
// reads all at once when it is next asked for a draft.
bool Protocol::reads_along(const LiveRequest& live, const Worker& worker) const {
  return worker.asked_in && *worker.asked_in + 1 >= next_step_ && !live.link.shadow &&
         live.link.known < live.sequence.committed() &&
         live.sequence.committed() <= worker.hello.model.max_context;
}

Clock::duration Protocol::draft_timeout() const {
  const auto scaled =
      std::chrono::nanoseconds(static_cast<int64_t>(options_.draft_timeout_rounds * round_ewma_ns_));
  return std::max<Clock::duration>(options_.draft_timeout_min, scaled);
}

// A round is worth about what its drafts save, some passes of the target: not half a minute of waiting for a
// worker that says that it is there and never drafts. Far beyond any difference between one draft and
// another.
Clock::duration Protocol::liveness_timeout() const {
  const double usual_ns = std::max(round_ewma_ns_, step_ewma_ns_);
  const auto scaled = std::chrono::nanoseconds(static_cast<int64_t>(options_.liveness_rounds * usual_ns));
  return std::min<Clock::duration>(options_.liveness_timeout,
                                   std::max<Clock::duration>(options_.liveness_timeout_min, scaled));
}

// Tokens that a worker has to read before it drafts; 0: so few that its usual times hold.
int32_t Protocol::unread(const LiveRequest& live) const {
  const int32_t committed = live.sequence.committed();
  if (live.link.fresh) return committed;
  return committed - live.link.known > kCatchUpTokens ? committed - live.link.known : 0;
}

// What a worker gets on top that has a prompt, or much else, to read first.
Clock::duration Protocol::reading_time(const LiveRequest& live) const {
  return std::min<Clock::duration>(kReadingTimePerToken * unread(live), options_.first_draft_timeout);
}

// For the draft of the round that begins, or again when the worker had lost track.
void Protocol::ask(LiveRequest& live) {
  RoundInFlight& round = live.round;
  Clock::duration timeout = draft_timeout() + reading_time(live);
  if (!is_match_rule(live.request.sampling.rule))
    timeout = std::max(timeout, std::min<Clock::duration>(liveness_timeout() + reading_time(live),
                                                          options_.liveness_timeout));
  round.batch_deadline = round.begun_at + draft_timeout();
  round.draft_deadline = round.begun_at + timeout;
  live.link.shadow.reset();
  worker_of(live)->asked_in = next_step_;
  propose(live, round.gamma, options_.pipeline);
}

void Protocol::ask_aside(LiveRequest& live, int32_t gamma) {
  const Clock::duration timeout = draft_timeout() + reading_time(live);
  live.link.shadow = ShadowDraft{.round = live.round.number,
                                 .epoch = live.sequence.epoch(),
                                 .base = Position(live.sequence.committed()),
                                 .prefix_hash = live.sequence.hash(),
                                 .gamma = gamma,
                                 .sent_at = now_,
                                 .deadline = now_ + timeout,
                                 .ids = {}};
  propose(live, gamma, Pipeline::kLockstep);
}

void Protocol::propose(LiveRequest& live, int32_t gamma, Pipeline pipeline) {
  const int32_t committed = live.sequence.committed();
  const auto unseen = live.sequence.ids_from(live.link.known);
  const Worker& worker = *worker_of(live);
  const int32_t unread_count = unread(live);
  Propose message{.sequence = live.id(),
                  .epoch = live.sequence.epoch(),
                  .round = live.round.number,
                  .base = Position(committed),
                  .committed = {unseen.begin(), unseen.end()},
                  .gamma = gamma,
                  .pipeline = pipeline,
                  .fanout = options_.fanout,
                  .stop = live.gamma->stop_rule(),
                  .wants_guess = options_.record_guesses && is_match_rule(live.request.sampling.rule)};
  ask_for_q(live, worker, message);
  // A worker that lost track is asked again in the same round, and its first answer may be under way.
  const Proposal& last = live.link.proposal;
  const bool again = last.message.sequence == message.sequence && last.message.round == message.round;
  const QKind first_q_kind = again ? last.first_q_kind : message.q_kind;
  const Clock::duration repeat_after = gamma > 0 ? repeat_time(worker, gamma) : Clock::duration(0);
  live.link.proposal = {.message = message,
                        .first_q_kind = first_q_kind,
                        .sent_at = now_,
                        .unread = unread_count,
                        .guessed = !worker.answer_time.known(),
                        .repeat_after = repeat_after,
                        .repeat_at = now_ + repeat_after + expected_reading(worker, unread_count)};
  send(*live.link.peer, std::move(message));
  live.link.known = committed;
}

Clock::duration Protocol::repeat_time(const Worker& worker, int32_t gamma) const {
  if (!worker.answer_time.known()) return options_.repeat_first;
  const auto drafting = std::chrono::nanoseconds(
      static_cast<int64_t>(gamma * cost_of(worker.kind).draft_token_seconds() * 1e9));
  return std::max<Clock::duration>(options_.repeat_min, worker.answer_time.overdue(drafting));
}

// Who has not read much yet is thought to read as fast as the target. Where much is lost nothing is waited
// for: to repeat some in vain costs less than to miss one for so long.
Clock::duration Protocol::expected_reading(const Worker& worker, int32_t unread) const {
  if (unread <= kCatchUpTokens || worker.answer_time.much_is_lost()) return {};
  const double token_ns = worker.read_token_ns > 0 ? worker.read_token_ns : prompt_ns_ / prompt_rows_;
  return std::chrono::nanoseconds(static_cast<int64_t>(unread * token_ns));
}

// A pass that reads little costs what any pass does. One that answers a repetition may have read before the
// first answer, which was lost.
void Protocol::learn_reading(Worker& worker, const Proposal& proposal, const Draft& draft) {
  if (proposal.unread <= kCatchUpTokens || draft.sent_after_us > 0) return;
  worker.read_token_ns = static_cast<double>(draft.ingest_ns) / proposal.unread;
}

// A worker that has it already goes on as it was. One that has sent its draft makes it again, the same.
void Protocol::repeat_overdue() {
  for (auto& [id, live] : live_) {
    Proposal& proposal = live->link.proposal;
    if (!live->awaits_draft() || proposal.repeat_after.count() == 0 || now_ < proposal.repeat_at) continue;
    ++proposal.repeats;
    ++totals_.proposals_repeated;
    if (proposal.repeats > kRepeatsAtOnePace) proposal.repeat_after += proposal.repeat_after / 8;
    proposal.repeat_at = now_ + proposal.repeat_after;
    ask_for_q(*live, *worker_of(*live), proposal.message);  // slices may have been lost meanwhile
    proposal.message.sent_after_us = static_cast<int32_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(now_ - proposal.sent_at).count());
    send(*live->link.peer, proposal.message);
  }
}

// Until the Propose was sent that this answers.
Clock::duration Protocol::lost_time(const Proposal& proposal, const Draft& draft) const {
  return std::chrono::microseconds(std::clamp(draft.sent_after_us, 0, proposal.message.sent_after_us));
}

// The round's draft is settled, with or without tokens.
void Protocol::decide(LiveRequest& live) {
  live.round.decided_at = now_;
  live.ready_at = now_;
  live.become(RequestState::kReady);
}

// Without its draft a round goes on under a number that no uniform was drawn for; a late Draft is stale.
void Protocol::go_plain(LiveRequest& live) {
  live.round.number = live.sequence.begin_round();
  live.round.has_draft = false;
  live.round.draft = {};
  decide(live);
}

void Protocol::receive(PeerId peer, Draft& message) {
  ++totals_.drafts_received;
  message.ingest_ns = reported_ns(message.ingest_ns);
  message.draft_ns = reported_ns(message.draft_ns);
  totals_.draft_ingest_ns += message.ingest_ns;
  totals_.draft_ns += message.draft_ns;
  totals_.slice_bytes += std::clamp<int64_t>(message.slice_bytes, 0, int64_t{1} << 32);
  totals_.link_bytes += std::clamp<int64_t>(message.link_bytes, 0, int64_t{1} << 32);
  totals_.preparation.add(message.preparation);
  const auto at = live_.find(message.sequence);
  if (at == live_.end() || !at->second->running()) return drop(DropReason::kUnknownSequence);
  LiveRequest& live = *at->second;
  if (live.link.peer != peer) return drop(DropReason::kUnexpectedSender);
  if (live.link.shadow && message.round == live.link.shadow->round) return take_shadow(live, message);
  if (message.epoch != live.sequence.epoch()) return drop(DropReason::kStaleEpoch);
  if (live.state != RequestState::kDrafting)
    return drop(live.round.has_draft && message.round == live.round.number ? DropReason::kDuplicate
                                                                           : DropReason::kStaleRound);
  const DraftExpectation expected{.epoch = live.sequence.epoch(),
                                  .round = live.round.number,
                                  .base = Position(live.sequence.committed()),
                                  .prefix_hash = live.sequence.hash(),
                                  .gamma = live.round.gamma,
                                  .q_kinds = live.link.proposal.q_kinds(),
                                  .vocab_size = target_->hello.model.vocab_size};
  auto reason = check_draft(message, expected);
  if (!reason && kPlanBytes + kPlanEntryBytes + frame_bytes_ > decode_bytes()) reason = DropReason::kTooLong;
  if (reason == DropReason::kStaleRound) return drop(*reason);
  Worker& worker = *worker_of(live);
  if (reason) {  // this round's answer, and unusable: nothing better will come
    drop(*reason);
    worker_missed(worker);
    go_plain(live);
    if (reason == DropReason::kWrongHash) open_at(peer, live);
    return;
  }
  worker.misses = 0;
  learn_reading(worker, live.link.proposal, message);
  live.round.read_prompt = live.link.fresh;
  live.link.fresh = false;
  live.round.has_draft = true;
  live.round.draft = std::move(message);
  live.round.draft_bytes = frame_bytes_;
  live.round.worker = worker.hello.generation;
  decide(live);
  if (!live.round.read_prompt) {
    const Proposal& proposal = live.link.proposal;
    const Clock::duration lost = lost_time(proposal, live.round.draft);
    worker.answer_time.observe(now_ - proposal.sent_at - busy_time(live.round.draft) - lost);
    if (proposal.repeats > 0) worker.answer_time.repeated(lost == Clock::duration(0));
    worker.answer_time.lost(lost > Clock::duration(0));
  }
  worker_answered(worker, live.round);
}

// Its tokens are never verified, only looked at.
void Protocol::take_shadow(LiveRequest& live, Draft& draft) {
  ShadowDraft& shadow = *live.link.shadow;
  if (shadow.ids) return drop(DropReason::kDuplicate);
  Worker& worker = *worker_of(live);
  const auto reason = check_draft(draft, {.epoch = shadow.epoch,
                                          .round = shadow.round,
                                          .base = shadow.base,
                                          .prefix_hash = shadow.prefix_hash,
                                          .gamma = shadow.gamma,
                                          .q_kinds = live.link.proposal.q_kinds(),
                                          .vocab_size = target_->hello.model.vocab_size});
  drop(reason.value_or(DropReason::kShadow));
  if (reason) {
    live.link.shadow.reset();
    worker_missed(worker);
    if (reason == DropReason::kWrongHash) open_at(*live.link.peer, live);
    return;
  }
  worker.misses = 0;
  learn_reading(worker, live.link.proposal, draft);
  live.link.fresh = false;
  const Clock::duration lost = lost_time(live.link.proposal, draft), waited = now_ - shadow.sent_at;
  // It may have waited for a pass to end, where the reader of messages is busy with it.
  const auto pass = std::chrono::duration<double>(cost_.verify_seconds(1, 0));
  worker.answer_time.lost(lost > Clock::duration(0));
  worker.answer_time.suppose(waited - lost - busy_time(draft) -
                             std::chrono::duration_cast<Clock::duration>(pass));
  learn_shadow(worker, live, draft, live.link.proposal.guessed ? waited - lost : waited);
  shadow.ids = std::move(draft.ids);
  compare_shadow(live);
}

// What the drafts of one step cost is known with the last of them, which came after `waited`. The first token
// of each comes from the pass that reads the text, so the others say what a token costs.
void Protocol::learn_shadow(Worker& worker, const LiveRequest& live, const Draft& draft,
                            Clock::duration waited) {
  ShadowPhase& phase = worker.shadows;
  const Clock::time_point sent_at = live.link.shadow->sent_at;
  if (phase.sent_at != sent_at) phase = {.sent_at = sent_at};
  phase.longest = std::max(phase.longest, length(draft.ids));
  phase.reading_ns += draft.ingest_ns;
  phase.drafting_ns += draft.draft_ns;
  const bool more = std::any_of(live_.begin(), live_.end(), [&](const auto& item) {
    const auto& other = item.second->link;
    return item.second.get() != &live && other.peer == live.link.peer && other.shadow && !other.shadow->ids &&
           other.shadow->sent_at == sent_at;
  });
  if (more) return;
  const double wait = std::chrono::duration<double>(waited).count();
  const double reading = static_cast<double>(phase.reading_ns) * 1e-9;
  const double drafting = static_cast<double>(phase.drafting_ns) * 1e-9;
  const double token = phase.longest > 1 ? drafting / (phase.longest - 1) : reading;
  const double busy = token * phase.longest;
  const double link = std::max(0.0, wait - reading - drafting);
  cost_.observe_shadow(phase.longest, busy, busy + link, reading);
  costs_.at(worker.kind).observe_shadow(phase.longest, busy, busy + link, reading);
}

void Protocol::compare_shadow(LiveRequest& live) {
  auto& shadow = live.link.shadow;
  if (!shadow || !shadow->ids || live.finished()) return;
  const auto accepted = accepted_of(*shadow, live.sequence);
  if (!accepted) return;
  live.gamma->observe_shadow(tests_shadows(live) ? length(*shadow->ids) : 0, *accepted);
  shadow.reset();
}

// Known once the text has gone on past the draft, or otherwise than it.
std::optional<int32_t> Protocol::accepted_of(const ShadowDraft& shadow, const Sequence& sequence) const {
  const auto& ids = *shadow.ids;
  if (options_.synthetic_acceptance)
    return options_.synthetic_acceptance->accepted_count(sequence.id(), shadow.base.value(), length(ids));
  const auto text = sequence.ids_from(shadow.base.value());
  const auto reach = std::min(ids.size(), text.size());
  const auto accepted = static_cast<size_t>(
      std::mismatch(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(reach), text.begin()).first -
      ids.begin());
  if (accepted == text.size() && accepted < ids.size()) return std::nullopt;
  return static_cast<int32_t>(accepted);
}

}  // namespace outrider
