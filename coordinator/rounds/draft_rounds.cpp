#include "coordinator/rounds/draft_rounds.h"

#include <algorithm>

namespace outrider {
namespace {

// A Propose is repeated this often at one pace, then more rarely. With half of all messages lost, one Propose
// in a hundred needs more repeats.
constexpr int32_t kRepeatsAtOnePace = 16;
// Lost messages cause a few Resyncs: for a lost Open, and again for its lost repetition.
constexpr int32_t kMaxResyncsPerRound = 16;
// A worker that prefills more slowly is too slow to wait for.
constexpr std::chrono::milliseconds kPrefillTimePerToken{10};

// Short prefills are no measure, since any pass costs as much. Neither is an answer to a repeated Propose:
// the worker may have prefilled before a first answer that was lost.
void learn_prefill(PoolWorker& worker, const Proposal& proposal, const Draft& draft) {
  if (proposal.unread <= kCatchUpTokens || draft.sent_after_us > 0) return;
  worker.read(draft.ingest_ns, proposal.unread);
}

}  // namespace

// The policy is asked only if a worker could draft, so its decisions follow the sequence's own rounds.
void DraftRounds::begin(LiveRequest& live, int32_t batch_size, Turn& turn) {
  RoundInFlight& round = live.round;
  round = RoundInFlight{};
  round.number = live.sequence.begin_round();
  round.begun_at = turn.now();
  live.link.resyncs = 0;
  if (live.constraint)
    round.room = {.tokens = terms_.gamma_limit(live),
                  .rows = target_.planner.mask_rows(live.constraint->vocab_size())};
  if (target_.drafts() && (live.own.asked || !pool_.of(live))) {
    own_.begin(live, turn);
    return rehearse(live, turn);
  }
  if (const PoolWorker* worker = pool_.drafter_of(live, turn.now())) {
    round.kind = worker->kind();
    const GammaContext context = terms_.gamma_context(live, *worker, batch_size);
    round.gamma = std::clamp(live.gamma->next(context), 0, context.limit);
    round.priced = context.found && live.gamma->longest_suffix_match() > 0;
    if (round.found()) round.gamma = std::min(live.gamma->longest_suffix_match(), context.limit);
    const int32_t probe_draft = round.gamma > 0 ? 0 : std::min(live.gamma->probe_draft(), context.limit);
    if (round.gamma > 0) {
      Branching branching = terms_.choose_tree(
          live, round.gamma, terms_.node_limit(live.sequence.committed()), batch_size, round.kind);
      round.tree = std::move(branching.tree);
      round.tree_wanted = branching.wanted;
    }
    if (probe_draft == 0 && !live.link.probe_draft)
      round.text_gamma = terms_.text_gamma(live, *worker, context.limit);
    if (round.text_gamma > 0 || round.priced)
      prices_ = terms_.price_passes(*context.cost, batch_size, context.context_length);
    if (round.asks()) {
      ask(live, turn);
    } else if (probe_draft > 0 && !live.link.probe_draft) {
      ask_aside(live, probe_draft, turn);
    } else if (prefills_along(live, *worker)) {
      propose(live, 0, options_.pipeline, turn);
    }
  }
  if (!round.asks()) return live.decide(turn.now());
  ++totals_.proposals;
  live.become(RequestState::kDrafting);
}

// Before a trial of a worker: lets it prefill what it has missed, and make a probe draft in this round, which
// uses the target's draft.
void DraftRounds::rehearse(LiveRequest& live, Turn& turn) {
  constexpr int32_t kLeast = 2;  // tokens: the first comes from the pass that prefills
  const PoolWorker* worker = pool_.drafter_of(live, turn.now());
  if (!target_.place.rehearses() || live.link.probe_draft || !worker) return;
  const int32_t gamma = std::min(std::max(kLeast, live.round.gamma), terms_.gamma_limit(live, *worker));
  if (gamma > 0) ask_aside(live, gamma, turn);
}

// True if the worker is busy with other sequences of this step, so prefilling this sequence's new tokens too
// costs no wake-up. An idle worker is left asleep and prefills them all at its next draft. In this
// process a prompt takes the target's time, so the policy decides whether its prefill pays.
bool DraftRounds::prefills_along(const LiveRequest& live, const PoolWorker& worker) const {
  return worker.drafts_around(target_.index, target_.planner.next_step()) && !live.link.probe_draft &&
         (live.unread() == 0 || !terms_.is_local(worker)) && live.link.known < live.sequence.committed() &&
         live.sequence.committed() <= worker.max_context();
}

// ---- Propose --------------------------------------------------------------------------------------------

// Extra time for a worker that has a prompt or many tokens to prefill first.
Clock::duration DraftRounds::prefill_time(const LiveRequest& live) const {
  return std::min<Clock::duration>(kPrefillTimePerToken * live.unread(), options_.first_draft_timeout);
}

// Asks for the draft of the round that begins, or again after the worker lost track.
void DraftRounds::ask(LiveRequest& live, Turn& turn) {
  RoundInFlight& round = live.round;
  const RoundTimes& times = target_.times;
  Clock::duration timeout = times.draft_timeout() + prefill_time(live);
  if (!is_match_rule(live.request.sampling.rule))
    timeout = std::max(timeout, std::min<Clock::duration>(times.liveness_timeout() + prefill_time(live),
                                                          options_.liveness_timeout));
  round.batch_deadline = round.begun_at + times.draft_timeout();
  round.draft_deadline = round.begun_at + timeout;
  live.link.probe_draft.reset();
  pool_.of(live)->asked_in(target_.index, target_.planner.next_step());
  propose(live, round.gamma, options_.pipeline, turn);
}

void DraftRounds::ask_aside(LiveRequest& live, int32_t gamma, Turn& turn) {
  const Clock::duration timeout = target_.times.draft_timeout() + prefill_time(live);
  live.link.probe_draft = ProbeDraft{.round = live.round.number,
                                     .epoch = live.sequence.epoch(),
                                     .base = Position(live.sequence.committed()),
                                     .prefix_hash = live.sequence.hash(),
                                     .gamma = gamma,
                                     .unread = live.unread(),
                                     .sent_at = turn.now(),
                                     .deadline = turn.now() + timeout,
                                     .ids = {}};
  target_.costs.probe_draft_begins();
  propose(live, gamma, Pipeline::kLockstep, turn);
}

void DraftRounds::propose(LiveRequest& live, int32_t gamma, Pipeline pipeline, Turn& turn) {
  const int32_t committed = live.sequence.committed();
  const auto unseen = live.sequence.ids_from(live.link.known);
  const PoolWorker& worker = *pool_.of(live);
  const int32_t unread_count = live.unread();
  Propose message{.sequence = live.id(),
                  .epoch = live.sequence.epoch(),
                  .round = live.round.number,
                  .base = Position(committed),
                  .committed = {unseen.begin(), unseen.end()},
                  .gamma = gamma,
                  .pipeline = pipeline,
                  .fanout = options_.fanout,
                  .stop = live.gamma->stop_rule(),
                  .wants_guess = options_.record_guesses && is_match_rule(live.request.sampling.rule),
                  .successors = std::exchange(live.link.successors, {}),
                  .text_gamma = live.round.text_gamma};
  // Without places the rule ends no draft; the worker sends its margins.
  if (message.wants_guess && message.stop.kind == StopKind::kNone) message.stop.kind = StopKind::kChances;
  if (message.text_gamma > 0 || live.round.priced)
    message.pass_ns = prices_.pass_ns, message.row_ns = prices_.row_ns;
  terms_.ask_for_q(live, worker, message);
  if (live.round.gamma > 0 && !live.link.probe_draft) message.tree = live.round.tree;
  if (!message.tree.is_chain() && message.tree.nodes == 0) message.pipeline = Pipeline::kLockstep;
  // A worker that lost track is asked again in the same round, so its first answer may be under way.
  const Proposal& last = live.link.proposal;
  const bool again = last.message.sequence == message.sequence && last.message.round == message.round;
  const QKind first_q_kind = again ? last.first_q_kind : message.q_kind;
  const bool awaited = gamma > 0 || message.text_gamma > 0;
  const Clock::duration repeat_after = awaited ? repeat_time(worker, gamma) : Clock::duration(0);
  live.link.proposal = {.message = message,
                        .first_q_kind = first_q_kind,
                        .sent_at = turn.now(),
                        .unread = unread_count,
                        .guessed = !worker.answer_time().known(),
                        .repeat_after = repeat_after,
                        .repeat_at = turn.now() + repeat_after + expected_prefill(worker, unread_count)};
  turn.send(*live.link.peer, std::move(message));
  live.link.known = committed;
}

Clock::duration DraftRounds::repeat_time(const PoolWorker& worker, int32_t gamma) const {
  if (!worker.answer_time().known()) return options_.repeat_first;
  const auto drafting = std::chrono::nanoseconds(
      static_cast<int64_t>(target_.costs.of(worker.kind()).draft_seconds(gamma) * 1e9));
  return std::max<Clock::duration>(options_.repeat_min, worker.answer_time().overdue(drafting));
}

// Expected prefill time. A worker without a measurement is assumed to prefill as fast as the target. Where
// many messages are lost the result is 0: a vain repeat costs less than a long wait for a lost message.
Clock::duration DraftRounds::expected_prefill(const PoolWorker& worker, int32_t unread) const {
  if (unread <= kCatchUpTokens || worker.answer_time().much_is_lost()) return {};
  if (worker.read_token_ns() == 0) return target_.times.prefill(unread);
  return std::chrono::nanoseconds(static_cast<int64_t>(unread * worker.read_token_ns()));
}

// Repeats overdue Proposes. A worker that has the Propose already continues; one that has sent its draft
// makes the same draft again.
void DraftRounds::repeat_overdue(RequestMap& requests, Turn& turn) {
  for (auto& [id, live] : requests) {
    Proposal& proposal = live->link.proposal;
    if (!live->awaits_draft() || proposal.repeat_after.count() == 0 || turn.now() < proposal.repeat_at)
      continue;
    ++proposal.repeats;
    ++totals_.proposals_repeated;
    if (proposal.repeats > kRepeatsAtOnePace) proposal.repeat_after += proposal.repeat_after / 8;
    proposal.repeat_at = turn.now() + proposal.repeat_after;
    terms_.ask_for_q(*live, *pool_.of(*live), proposal.message);  // slices may have been lost meanwhile
    proposal.message.sent_after_us = static_cast<int32_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(turn.now() - proposal.sent_at).count());
    turn.send(*live->link.peer, proposal.message);
  }
}

// ---- Draft ----------------------------------------------------------------------------------------------

std::optional<DropReason> DraftRounds::why_unusable(const LiveRequest& live, const Draft& draft,
                                                    size_t frame_bytes) const {
  const TreeShape& tree = live.link.proposal.message.tree;
  const int64_t tree_nodes = tree.is_chain() ? 0 : most_nodes(tree, live.round.gamma);
  const auto reason = check_draft(draft, {.epoch = live.sequence.epoch(),
                                          .round = live.round.number,
                                          .base = Position(live.sequence.committed()),
                                          .prefix_hash = live.sequence.hash(),
                                          .gamma = draft.from_text ? live.round.text_gamma : live.round.gamma,
                                          .tree_nodes = tree_nodes,
                                          .equal_siblings = draws_independently(live.request.sampling.rule),
                                          .q_kinds = live.link.proposal.q_kinds(),
                                          .vocab_size = target_.model().vocab_size});
  if (!reason && !target_.planner.draft_fits(frame_bytes)) return DropReason::kTooLong;
  return reason;
}

void DraftRounds::take(PeerId peer, Draft& draft, size_t frame_bytes, RequestTable& requests, Turn& turn) {
  totals_.receive(draft);
  LiveRequest* found = requests.find(draft.sequence);
  if (!found || !found->running()) return totals_.drop(DropReason::kUnknownSequence);
  LiveRequest& live = *found;
  if (live.link.peer != peer) return totals_.drop(DropReason::kUnexpectedSender);
  PoolWorker& worker = *pool_.of(live);
  if (live.link.probe_draft && draft.round == live.link.probe_draft->round)
    return take_probe_draft(live, worker, draft, requests.all(), turn);
  if (draft.epoch != live.sequence.epoch()) return totals_.drop(DropReason::kStaleEpoch);
  if (live.state != RequestState::kDrafting)
    return totals_.drop(live.round.has_draft && draft.round == live.round.number ? DropReason::kDuplicate
                                                                                 : DropReason::kStaleRound);
  const auto reason = why_unusable(live, draft, frame_bytes);
  if (!reason) return accept(live, worker, draft, frame_bytes, turn);
  totals_.drop(*reason);
  if (reason == DropReason::kStaleRound) return;
  missed(worker, turn);  // this round's answer is unusable, and no better one will come
  live.go_plain(turn.now());
  if (reason == DropReason::kWrongHash) pool_.open(live, turn);
}

void DraftRounds::accept(LiveRequest& live, PoolWorker& worker, Draft& draft, size_t frame_bytes,
                         Turn& turn) {
  RoundInFlight& round = live.round;
  const Proposal& proposal = live.link.proposal;
  worker.drafted();
  learn_prefill(worker, proposal, draft);
  round.read_prompt = std::exchange(live.link.fresh, false);
  round.has_draft = true;
  round.draft = std::move(draft);
  round.draft_bytes = frame_bytes;
  round.worker = worker.generation();
  if (round.gamma == 0) live.text_asks.answered(!round.draft.ids.empty());
  live.decide(turn.now());
  if (round.read_prompt) return;
  const Clock::duration lost = proposal.lost_time(round.draft);
  AnswerTime& answer_time = worker.answer_time();
  answer_time.observe(turn.now() - proposal.sent_at - busy_time(round.draft) - lost);
  if (proposal.repeats > 0) answer_time.repeated(lost == Clock::duration(0));
  answer_time.lost(lost > Clock::duration(0));
  if (round.drafted() > 0 && !round.from_text())
    worker.waited(round.decided_at - round.begun_at, round.drafted(), turn.now());
}

// Tokens of a probe draft are never verified, only compared.
void DraftRounds::take_probe_draft(LiveRequest& live, PoolWorker& worker, Draft& draft,
                                   const RequestMap& requests, Turn& turn) {
  const ProbeDraft& probe_draft = *live.link.probe_draft;
  if (probe_draft.ids) return totals_.drop(DropReason::kDuplicate);
  const auto reason = check_draft(draft, {.epoch = probe_draft.epoch,
                                          .round = probe_draft.round,
                                          .base = probe_draft.base,
                                          .prefix_hash = probe_draft.prefix_hash,
                                          .gamma = probe_draft.gamma,
                                          .q_kinds = live.link.proposal.q_kinds(),
                                          .vocab_size = target_.model().vocab_size});
  totals_.drop(reason.value_or(DropReason::kProbeDraft));
  if (reason) {
    live.link.probe_draft.reset();
    missed(worker, turn);
    if (reason == DropReason::kWrongHash) pool_.open(live, turn);
    return;
  }
  worker.drafted();
  target_.place.heard();
  learn_prefill(worker, live.link.proposal, draft);
  live.link.fresh = false;
  probe_drafts_.take(live, worker, draft, requests, turn.now());
}

// ---- without a Draft ------------------------------------------------------------------------------------

void DraftRounds::take(PeerId peer, const Resync& message, RequestTable& requests, Turn& turn) {
  ++totals_.resyncs;
  LiveRequest* found = requests.find(message.sequence);
  if (!found || found->link.peer != peer) return turn.send(peer, Close{message.sequence});
  LiveRequest& live = *found;
  const int32_t held = message.committed.value();
  live.link.hidden_states = std::clamp(message.hidden_state_rows, 0, live.link.hidden_states);
  const bool is_prefix =
      held > 0 && held <= live.sequence.committed() && live.sequence.hash_of_first(held) == message.hash;
  if (++live.link.resyncs > kMaxResyncsPerRound) {
    if (live.state != RequestState::kDrafting) return;
    missed(*pool_.of(live), turn);
    return live.go_plain(turn.now());
  }
  if (is_prefix) {
    live.link.known = held;
  } else {
    pool_.open(live, turn);
  }
  live.link.probe_draft.reset();
  if (live.state == RequestState::kDrafting) ask(live, turn);
}

void DraftRounds::expire(RequestMap& requests, Turn& turn) {
  for (auto& [id, live] : requests) {
    auto& probe_draft = live->link.probe_draft;
    if (probe_draft && !probe_draft->ids && turn.now() >= probe_draft->deadline) {
      ++totals_.draft_deadlines_missed;
      if (PoolWorker* worker = pool_.of(*live)) missed(*worker, turn);
      probe_draft.reset();
    }
    if (live->state != RequestState::kDrafting || turn.now() < live->round.draft_deadline) continue;
    const bool may_be_late = is_match_rule(live->request.sampling.rule);
    ++totals_.draft_deadlines_missed;
    totals_.liveness_timeouts += !may_be_late;
    if (PoolWorker* worker = pool_.of(*live))
      pool_.missed(*worker, may_be_late ? target_.times.draft_timeout() : target_.times.liveness_timeout(),
                   turn.now());
    live->go_plain(turn.now());
  }
}

}  // namespace outrider
