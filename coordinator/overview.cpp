#include "coordinator/overview.h"

#include <algorithm>
#include <cmath>

#include "coordinator/protocol.h"

namespace outrider {
namespace {

WorkerOverview overview_of(PeerId peer, const PoolWorker& worker, Clock::time_point now) {
  const auto& verified = worker.verified();
  return {
      .peer = peer.value,
      .model = worker.name(),
      .state = worker.is_usable(now) ? WorkerOverview::State::kDrafting : WorkerOverview::State::kLeftAlone,
      .sequences = worker.held(),
      .room = worker.room(),
      .drafts = verified.drafts,
      .drafted = verified.drafted,
      .tested = verified.tested,
      .accepted = verified.accepted,
      .seconds_per_token = worker.token_ns() * 1e-9};
}

}  // namespace

Overview Protocol::overview() const {
  Overview out{.running = static_cast<int64_t>(requests_.running()),
               .queued = static_cast<int64_t>(requests_.queued())};
  pool_.for_each(
      [&](PeerId peer, const PoolWorker& worker) { out.workers.push_back(overview_of(peer, worker, now_)); });
  if (!target_.is_here()) return out;
  out.kv_room = static_cast<int64_t>(target_.places()) * target_.max_context();
  out.prefix_tokens = target_.kv.kept_blocks() * kBlockTokens;
  int64_t context = 0, decoding = 0, asked = 0;
  DrafterKind kind = 0;
  for (const auto& [id, live] : requests_.all()) {
    if (!live->running()) continue;
    out.kv_tokens += live->sequence.target.open ? live->sequence.target.kv_length : 0;
    if (live->sequence.emitted() == 0) continue;
    ++decoding;
    context += live->sequence.committed();
    const auto gamma = static_cast<size_t>(std::max(live->round.gamma, 0));
    if (out.gammas.size() <= gamma) out.gammas.resize(gamma + 1);
    ++out.gammas[gamma];
    asked += live->round.gamma;
    kind = live->kind;
  }
  if (decoding == 0) return out;
  const CostModel& cost = target_.costs.of(kind);
  const auto batch = static_cast<int32_t>(decoding), mean_context = static_cast<int32_t>(context / decoding);
  out.mean_gamma = static_cast<double>(asked) / static_cast<double>(decoding);
  out.plain_round_seconds = cost.round_seconds(0, batch, mean_context);
  out.round_seconds =
      cost.round_seconds(static_cast<int32_t>(std::lround(out.mean_gamma)), batch, mean_context);
  return out;
}

}  // namespace outrider
