// The first half of a round: gamma, Propose, Draft (algorithms.md 7.2).
#include <algorithm>

#include "coordinator/draft_check.h"
#include "coordinator/protocol.h"

namespace outrider {
namespace {

// A worker that far behind reads as long as one with a new prompt.
constexpr int32_t kCatchUpTokens = 64;
// A worker that takes longer to read is too slow to wait for.
constexpr std::chrono::milliseconds kReadingTimePerToken{10};

}  // namespace

// algorithms.md 2.10, and room in one pass.
int32_t Protocol::gamma_limit(const LiveRequest& live, const Worker& worker) const {
  const int32_t committed = live.sequence.committed();
  const int32_t decode_rows = options_.max_rows_per_step - options_.max_rows_per_step / 4;
  return std::max(0, std::min({options_.gamma_max, live.request.max_tokens - live.sequence.emitted() - 1,
                               max_context() - committed - 1, worker.hello.model.max_context - committed,
                               decode_rows - 1}));
}

QKind Protocol::q_kind(const LiveRequest& live, const Worker& worker) const {
  if (!needs_q(live.request.sampling.rule)) return QKind::kNone;
  const bool has_doors = !target_->hello.slices.of_rank.empty();
  return options_.q_kind == QKind::kDense && has_doors && worker.slices ? QKind::kSlices : options_.q_kind;
}

// A policy is asked only when a worker could draft, so its decisions follow the sequence's own rounds.
void Protocol::begin_round(LiveRequest& live) {
  RoundInFlight& round = live.round;
  round = RoundInFlight{};
  round.number = live.sequence.begin_round();
  round.begun_at = now_;
  live.link.resyncs = 0;
  const Worker* worker = worker_of(live);
  const bool usable = worker && live.link.opened && worker->usable(now_);
  if (usable) {
    round.kind = worker->kind;
    const int32_t limit = gamma_limit(live, *worker);
    const GammaContext context{.limit = limit,
                               .batch_size = static_cast<int32_t>(running_),
                               .context_length = live.sequence.committed(),
                               .cost = &cost_of(round.kind),
                               .ahead = options_.pipeline != Pipeline::kLockstep};
    round.gamma = std::clamp(live.gamma->next(context), 0, limit);
    const bool readable = live.sequence.committed() <= worker->hello.model.max_context;
    if (round.gamma > 0 || (readable && live.link.known < live.sequence.committed())) propose(live);
  }
  if (round.gamma == 0) return decide(live);
  ++totals_.proposals;
  live.become(RequestState::kDrafting);
}

Clock::duration Protocol::draft_timeout() const {
  const auto scaled =
      std::chrono::nanoseconds(static_cast<int64_t>(options_.draft_timeout_rounds * round_ewma_ns_));
  return std::max<Clock::duration>(options_.draft_timeout_min, scaled);
}

void Protocol::propose(LiveRequest& live) {
  RoundInFlight& round = live.round;
  const int32_t committed = live.sequence.committed();
  const auto unseen = live.sequence.ids_from(live.link.known);
  const int32_t unread = live.link.fresh ? committed : committed - live.link.known;
  Clock::duration timeout = draft_timeout();
  round.batch_deadline = now_ + timeout;
  if (live.link.fresh || unread > kCatchUpTokens)
    timeout += std::min<Clock::duration>(kReadingTimePerToken * unread, options_.first_draft_timeout);
  if (!is_match_rule(live.request.sampling.rule))
    timeout = std::max<Clock::duration>(timeout, options_.liveness_timeout);
  round.draft_deadline = now_ + timeout;
  const QKind q = q_kind(live, *worker_of(live));
  send(*live.link.peer,
       Propose{.sequence = live.id(),
               .epoch = live.sequence.epoch(),
               .round = round.number,
               .base = Position(committed),
               .committed = {unseen.begin(), unseen.end()},
               .gamma = round.gamma,
               .q_kind = q,
               .sparse_m = q == QKind::kSparse ? options_.sparse_m : 0,
               .deadline_ms = static_cast<int32_t>(
                   std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count()),
               .pipeline = options_.pipeline,
               .fanout = options_.fanout,
               .stop = live.gamma->stop_rule(),
               .wants_guess = options_.record_guesses && is_match_rule(live.request.sampling.rule)});
  live.link.known = committed;
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
  totals_.preparation.add(message.preparation);
  const auto at = live_.find(message.sequence);
  if (at == live_.end() || !at->second->running()) return drop(DropReason::kUnknownSequence);
  LiveRequest& live = *at->second;
  if (live.link.peer != peer) return drop(DropReason::kUnexpectedSender);
  if (message.epoch != live.sequence.epoch()) return drop(DropReason::kStaleEpoch);
  if (live.state != RequestState::kDrafting)
    return drop(live.round.has_draft && message.round == live.round.number ? DropReason::kDuplicate
                                                                           : DropReason::kStaleRound);
  const DraftExpectation expected{.epoch = live.sequence.epoch(),
                                  .round = live.round.number,
                                  .base = Position(live.sequence.committed()),
                                  .prefix_hash = live.sequence.hash(),
                                  .gamma = live.round.gamma,
                                  .q_kind = q_kind(live, *worker_of(live)),
                                  .vocab_size = target_->hello.model.vocab_size};
  const auto reason = check_draft(message, expected);
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
  live.round.read_prompt = live.link.fresh;
  live.link.fresh = false;
  live.round.has_draft = true;
  live.round.draft = std::move(message);
  live.round.worker = worker.hello.generation;
  decide(live);
  worker_answered(worker, live.round);
}

}  // namespace outrider
