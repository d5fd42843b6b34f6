#include "coordinator/rounds/drafter_costs.h"

#include <algorithm>

namespace outrider {
namespace {

// Far more kinds than a real pool has; all further ones share one entry.
constexpr size_t kMaxKinds = 32;

}  // namespace

DrafterKind DrafterCosts::add_kind(uint64_t fingerprint, const PassTimes& measured, bool of_blocks) {
  DrafterKind kind = std::max<uint64_t>(1, fingerprint);
  if (by_kind_.size() >= kMaxKinds && !by_kind_.contains(kind)) kind = 1;
  const auto [at, is_new] = by_kind_.try_emplace(kind);
  if (is_new) {
    at->second.expect_passes(pass_times_);
    at->second.set_draft_blocks(of_blocks);
    workers_[kind].cost.set_blocks(of_blocks);
    // Tokens of one kind and blocks of another have no common cost; blocks then count by their tokens.
    all_.set_draft_blocks(std::all_of(by_kind_.begin(), by_kind_.end(),
                                      [](const auto& known) { return known.second.draft().of_blocks; }));
  }
  at->second.expect_drafts(measured);
  if (measured.row_ns > 0) workers_[kind].cost.expect(at->second.draft());
  workers_.try_emplace(kind);
  if (by_kind_.size() == 1) all_.expect_drafts(measured);
  return kind;
}

void DrafterCosts::expect_passes(const PassTimes& measured) {
  pass_times_ = measured;
  all_.expect_passes(measured);
  for (auto& [kind, cost] : by_kind_) cost.expect_passes(measured);
}

void DrafterCosts::observe_verify(int32_t rows, int64_t context, double seconds, bool beside_probe_draft) {
  if (!passes_.next(beside_probe_draft)) return;
  all_.observe_verify(rows, context, seconds);
  for (auto& [kind, cost] : by_kind_) cost.observe_verify(rows, context, seconds);
}

void DrafterCosts::observe_own(DrafterKind kind, int32_t longest, int32_t total, double seconds) {
  passes_.draft();
  all_.observe_draft_phase(longest, total, seconds, seconds);
  by_kind_.at(kind).observe_draft_phase(longest, total, seconds, seconds);
}

void DrafterCosts::observe_probe_draft(DrafterKind kind, const ProbeDrafting& probe_draft) {
  passes_.probe_draft();
  all_.observe_probe_draft(probe_draft, longest_pass_);
  by_kind_.at(kind).observe_probe_draft(probe_draft, longest_pass_);
}

void DrafterCosts::observe_prefill(DrafterKind kind, int32_t tokens, double seconds) {
  all_.observe_prefill(tokens, seconds);
  by_kind_.at(kind).observe_prefill(tokens, seconds);
}

// A worker prefills for all its sequences in the same passes, so only their sum is a measure.
void DrafterCosts::observe_prefill(std::span<const PlannedEntry> planned) {
  struct Prefill {
    PeerId peer;
    DrafterKind kind;
    int32_t tokens = 0;
    double seconds = 0;
  };
  std::vector<Prefill> prefills;
  for (const PlannedEntry& entry : planned) {
    const DraftLink& link = entry.live->link;
    const RoundInFlight& round = entry.live->round;
    if (!entry.sampling || round.own || !round.has_draft || round.from_text() || !link.peer) continue;
    auto at = std::find_if(prefills.begin(), prefills.end(),
                           [&](const Prefill& prefill) { return prefill.peer == *link.peer; });
    if (at == prefills.end()) at = prefills.insert(at, {*link.peer, round.kind});
    at->tokens += link.proposal.unread;
    at->seconds += static_cast<double>(round.draft.ingest_ns) * 1e-9;
  }
  for (const Prefill& prefill : prefills)
    if (prefill.tokens > kCatchUpTokens) observe_prefill(prefill.kind, prefill.tokens, prefill.seconds);
}

void DrafterCosts::observe_drafts(std::span<const PlannedEntry> planned) {
  if (std::any_of(planned.begin(), planned.end(), [](const PlannedEntry& e) {
        return e.sampling && e.live->round.has_draft && e.live->link.proposal.unread > 0;
      }))
    observe_prefill(planned);
  if (std::any_of(planned.begin(), planned.end(),
                  [](const auto& e) { return e.sampling && e.live->round.asks(); }))
    passes_.draft();
  observe_workers(planned);
  observe_drafts(planned, {}, all_);
  for (auto& [kind, cost] : by_kind_) observe_drafts(planned, kind, cost);
}

// Every worker by itself. Steps with a prefill or without an answer are no measure, as below.
void DrafterCosts::observe_workers(std::span<const PlannedEntry> planned) {
  struct Drafting {
    PeerId peer;
    DrafterKind kind;
    int32_t longest = 0, total = 0;
    double busy = 0;
  };
  std::vector<Drafting> workers;
  for (const PlannedEntry& entry : planned) {
    const DraftLink& link = entry.live->link;
    const RoundInFlight& round = entry.live->round;
    if (!entry.sampling || round.own || round.gamma == 0 || round.from_text()) continue;
    if (!round.has_draft || round.read_prompt || !link.peer) return;
    auto at = std::find_if(workers.begin(), workers.end(),
                           [&](const Drafting& worker) { return worker.peer == *link.peer; });
    if (at == workers.end()) at = workers.insert(at, {*link.peer, round.kind});
    at->longest = std::max(at->longest, round.depth());
    at->total += round.drafted();
    at->busy += static_cast<double>(round.draft.ingest_ns + round.draft.draft_ns) * 1e-9;
  }
  for (const Drafting& worker : workers)
    workers_.at(worker.kind).cost.observe(worker.longest, worker.total, worker.busy);
}

// `kind`: restricts it to sequences with this kind of drafter.
void DrafterCosts::observe_drafts(std::span<const PlannedEntry> planned, std::optional<DrafterKind> kind,
                                  CostModel& cost) {
  DraftPhase phase;
  busy_.clear();
  for (const PlannedEntry& entry : planned) {
    const DraftLink& link = entry.live->link;
    const RoundInFlight& round = entry.live->round;
    if (!entry.sampling || round.own || round.gamma == 0 || round.from_text() ||
        (kind && round.kind != *kind))
      continue;
    if (!round.has_draft || round.read_prompt || !link.peer) return;
    // A round that looked for a draft and found none waited, too.
    const int32_t least = round.found() ? 1 : 0;
    phase.longest = std::max({phase.longest, round.depth(), least});
    phase.total += std::max(round.drafted(), least);
    phase.wait =
        std::max(phase.wait, std::chrono::duration<double>(round.decided_at - round.begun_at).count());
    phase.lost =
        std::max(phase.lost, std::chrono::duration<double>(link.proposal.lost_time(round.draft)).count());
    phase.prepared |= round.draft.preparation.looked_up;
    auto worker =
        std::find_if(busy_.begin(), busy_.end(), [&](const auto& busy) { return busy.first == *link.peer; });
    if (worker == busy_.end()) worker = busy_.insert(worker, {*link.peer, 0.0});
    worker->second += static_cast<double>(round.draft.ingest_ns + round.draft.draft_ns) * 1e-9;
    phase.busy = std::max(phase.busy, worker->second);
  }
  cost.observe_draft_phase(phase);
}

}  // namespace outrider
