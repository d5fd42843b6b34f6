#include "coordinator/overview.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "coordinator/protocol.h"
#include "coordinator/rounds/workers_wanted.h"

namespace outrider {
namespace {

WorkerOverview overview_of(PeerId peer, const PoolWorker& worker, Clock::time_point now) {
  const auto& verified = worker.verified();
  return {
      .peer = peer.value,
      .model = worker.name(),
      .weights = worker.is_without_model() ? 0 : worker.fingerprint(),
      .state = worker.is_usable(now) ? WorkerOverview::State::kDrafting : WorkerOverview::State::kLeftAlone,
      .sequences = worker.held(),
      .room = worker.room(),
      .drafts = verified.drafts,
      .drafted = verified.drafted,
      .tested = verified.tested,
      .accepted = verified.accepted,
      .seconds_per_token = worker.token_ns() * 1e-9};
}

// Adds the state of one group, and the round time of each of its decoding sequences. Returns their number.
int64_t add_group(const ServingGroup& group, bool only_prefills, Overview& out) {
  const TargetGroup& target = group.target;
  GroupOverview& here = out.groups.emplace_back(
      GroupOverview{.here = target.is_here(), .running = static_cast<int64_t>(group.requests.running())});
  here.only_prefills = only_prefills;
  here.was_lost = !here.here && target.was_lost;
  if (!here.here) return 0;
  here.peer = target.peer()->value;
  here.seq_slots = static_cast<int64_t>(target.seq_slots());
  here.kv_room = target.kv_tokens() > 0 ? target.kv_tokens() : here.seq_slots * target.max_context();
  here.prefix_tokens = target.kv.kept_blocks() * kBlockTokens;
  int64_t context = 0, decoding = 0, asked = 0;
  DrafterKind kind = 0;
  for (const auto& [id, live] : group.requests.all()) {
    if (!live->running()) continue;
    here.kv_tokens += live->sequence.target.open ? live->sequence.target.kv_length : 0;
    if (live->sequence.emitted() == 0) continue;
    ++decoding;
    context += live->sequence.committed();
    const auto gamma = static_cast<size_t>(std::max(live->round.asked(), 0));
    if (out.gammas.size() <= gamma) out.gammas.resize(gamma + 1);
    ++out.gammas[gamma];
    asked += live->round.asked();
    kind = live->kind;
  }
  if (decoding == 0) return 0;
  const CostModel& cost = target.costs.of(kind);
  const auto batch = static_cast<int32_t>(decoding), mean_context = static_cast<int32_t>(context / decoding);
  const double mean_gamma = static_cast<double>(asked) / static_cast<double>(decoding);
  const auto each = static_cast<double>(decoding);
  out.mean_gamma += static_cast<double>(asked);
  out.plain_round_seconds += each * cost.round_seconds(0, batch, mean_context);
  out.round_seconds +=
      each * cost.round_seconds(static_cast<int32_t>(std::lround(mean_gamma)), batch, mean_context);
  return decoding;
}

// The decoding sequences of a group that use draft workers, or would if there were some.
DraftedBatch drafted_batch(const ServingGroup& group, int32_t gamma_max) {
  const TargetGroup& target = group.target;
  DraftedBatch out{.gamma_max = gamma_max};
  if (!target.is_here() || (target.drafts() && !(target.has_two_places() && target.place.at_worker())))
    return out;
  DrafterKind kind = target.costs.newest_kind();
  for (const auto& [id, live] : group.requests.all()) {
    if (!live->running() || live->sequence.emitted() == 0) continue;
    ++out.sequences;
    out.context += live->sequence.committed();
    if (live->kind != 0) kind = live->kind;
  }
  out.cost = &target.costs.of(kind);
  if (kind == 0) return out;
  const WorkerRecord& record = target.costs.worker(kind);
  out.worker = record.cost.is_measured() ? record.cost.cost() : out.cost->draft();
  out.acceptance = record.acceptance.mean();
  return out;
}

}  // namespace

Overview Protocol::overview() const {
  Overview out{.running = static_cast<int64_t>(running_requests()),
               .queued = static_cast<int64_t>(queue_.size())};
  pool_.for_each(
      [&](PeerId peer, const PoolWorker& worker) { out.workers.push_back(overview_of(peer, worker, now_)); });
  int64_t decoding = 0;
  std::vector<DraftedBatch> batches;
  for (const ServingGroup& group : groups_) {
    decoding += add_group(group, groups_.is_for(group, true), out);
    if (options_.may_draft) batches.push_back(drafted_batch(group, options_.gamma_max));
  }
  int32_t room = std::numeric_limits<int32_t>::max();
  for (const WorkerOverview& worker : out.workers) room = std::min(room, worker.room);
  out.workers_wanted = workers_wanted(batches, room);
  for (const GroupOverview& group : out.groups) {
    out.kv_room += group.kv_room;
    out.kv_tokens += group.kv_tokens;
    out.prefix_tokens += group.prefix_tokens;
  }
  if (decoding == 0) return out;
  for (double* sum : {&out.mean_gamma, &out.plain_round_seconds, &out.round_seconds})
    *sum /= static_cast<double>(decoding);
  return out;
}

}  // namespace outrider
