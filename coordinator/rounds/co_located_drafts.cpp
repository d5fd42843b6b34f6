#include "coordinator/rounds/co_located_drafts.h"

#include <algorithm>
#include <utility>

#include "coordinator/rounds/draft_check.h"

namespace outrider {

void CoLocatedDrafts::choose_place(const OutstandingPlan& plan, int32_t batch_size, Clock::time_point now) {
  constexpr int32_t kUsualGamma = 2;
  if (!target_.has_two_places()) return;
  const PoolWorker* any = nullptr;
  int32_t gamma = kUsualGamma, context = 0;
  for (const PlannedEntry& entry : plan.entries) {
    const PoolWorker* worker = entry.sampling ? pool_.drafter_of(*entry.live, now) : nullptr;
    if (!worker) continue;
    any = worker;
    gamma = std::max(gamma, entry.live->round.gamma);
    context = std::max(context, entry.live->sequence.committed());
  }
  if (!any) return;
  const auto seconds = [&](DrafterKind kind) {
    return target_.costs.of(kind).round_seconds(gamma, batch_size, context);
  };
  const int64_t trials = target_.place.trials();
  target_.place.decide(seconds(any->kind()) / seconds(target_.own_kind()));
  totals_.place_trials += target_.place.trials() - trials;
}

// The entry's own verdict commits at least one token.
void CoLocatedDrafts::ask(LiveRequest& live, int32_t batch_size, PlanEntry& entry, Clock::time_point now) {
  if (!live.own.asked && target_.place.at_worker() && pool_.drafter_of(live, now)) return;
  if (!live.own.asked) {  // else a lost group was asked for the same draft
    const GammaContext context{.limit = live.debt.is_due() ? 0 : std::max(0, terms_.gamma_limit(live) - 1),
                               .batch_size = batch_size,
                               .in_prefill = target_.in_prefill,
                               .group = target_.index,
                               .context_length = live.sequence.committed(),
                               .cost = &target_.costs.of(target_.own_kind()),
                               .early = true};
    const int32_t gamma = std::clamp(live.gamma->next(context), 0, context.limit);
    // Room for the next tree must remain after any verdict.
    const int32_t committed = live.sequence.committed() + live.round.drafted() + 1;
    const Branching branching =
        terms_.choose_tree(live, gamma, terms_.node_limit(committed), batch_size, target_.own_kind());
    live.own = {.asked = true,
                .round = live.sequence.begin_round(),
                .gamma = gamma,
                .tree = branching.tree,
                .tree_wanted = branching.wanted,
                .draft = {}};
    totals_.proposals += gamma > 0;
  }
  entry.next_gamma = live.own.gamma;
  entry.next_round = live.own.round;
  entry.next_stop = live.gamma->stop_rule();
  entry.next_tree = live.own.tree;
}

void CoLocatedDrafts::take(Draft& draft, size_t frame_bytes, RequestTable& requests) {
  totals_.receive(draft);
  LiveRequest* live = requests.find(draft.sequence);
  if (!live || !live->running()) return totals_.drop(DropReason::kUnknownSequence);
  if (live->own.gamma == 0 || draft.round != live->own.round) return totals_.drop(DropReason::kStaleRound);
  if (live->own.draft) return totals_.drop(DropReason::kDuplicate);
  live->own.draft = std::move(draft);
  live->own.bytes = frame_bytes;
}

// The draft has arrived, or there is none. It may be longer than the room that is left.
void CoLocatedDrafts::begin(LiveRequest& live, Turn& turn) {
  RoundInFlight& round = live.round;
  CoLocatedDraft own = std::exchange(live.own, {});
  round.own = true;
  round.kind = target_.own_kind();
  if (!own.draft) return live.decide(turn.now());
  round.number = own.round;
  round.gamma = std::min(own.gamma, terms_.gamma_limit(live));
  round.tree = own.tree;
  round.tree_wanted = own.tree_wanted;
  Draft& draft = *own.draft;
  const auto most = static_cast<size_t>(round.gamma);
  if (draft.ids.size() > most && draft.parents.empty()) {
    draft.ids.resize(most);
    draft.q.resize(std::min(draft.q.size(), most));
    draft.eos = false;
  }
  if (!draft.parents.empty()) {
    if (round.gamma == 0) draft.ids.clear(), draft.parents.clear(), draft.q.clear();
    if (round.gamma > 0) round.gamma = own.gamma;  // tokens beyond the request's end are cut later
  }
  const QKind asked = needs_q(live.request.sampling.rule) ? options_.q_kind : QKind::kNone;
  auto reason = check_draft(draft, {.epoch = live.sequence.epoch(),
                                    .round = own.round,
                                    .base = Position(live.sequence.committed()),
                                    .prefix_hash = live.sequence.hash(),
                                    .gamma = round.gamma,
                                    .tree_nodes = own.tree.is_chain() ? 0 : most_nodes(own.tree, own.gamma),
                                    .equal_siblings = draws_independently(live.request.sampling.rule),
                                    .q_kinds = {asked, asked == QKind::kNone ? asked : QKind::kSparse},
                                    .vocab_size = target_.model().vocab_size});
  if (!reason && !target_.planner.draft_fits(own.bytes)) reason = DropReason::kTooLong;
  if (reason) {
    totals_.drop(*reason);
    round.gamma = 0;
    return live.go_plain(turn.now());
  }
  round.has_draft = true;
  round.draft = std::move(draft);
  round.draft_bytes = own.bytes;
  live.decide(turn.now());
}

}  // namespace outrider
