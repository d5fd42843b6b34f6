#include "coordinator/shadow_drafts.h"

#include <algorithm>

#include "cluster/acceptance_process.h"

namespace outrider {

void ShadowDrafts::take(LiveRequest& live, PoolWorker& worker, Draft& draft, const RequestMap& requests,
                        Clock::time_point now) {
  ShadowDraft& shadow = *live.link.shadow;
  const Clock::duration lost = live.link.proposal.lost_time(draft), waited = now - shadow.sent_at;
  // The exchange may include the wait for a pass, which keeps the reader of messages busy.
  const auto pass = std::chrono::duration<double>(costs_.all().verify_seconds(1, 0));
  worker.answer_time().lost(lost > Clock::duration(0));
  worker.answer_time().suppose(waited - lost - busy_time(draft) -
                               std::chrono::duration_cast<Clock::duration>(pass));
  learn_costs(live, worker, draft, live.link.proposal.guessed ? waited - lost : waited, requests);
  shadow.ids = std::move(draft.ids);
  compare(live);
}

// The cost of a step's drafts is known with its last draft, `waited` after the request. The first token of
// each draft comes from the pass that prefills the text, so the other tokens show the cost of a token.
void ShadowDrafts::learn_costs(const LiveRequest& live, PoolWorker& worker, const Draft& draft,
                               Clock::duration waited, const RequestMap& requests) {
  const Clock::time_point sent_at = live.link.shadow->sent_at;
  const ShadowPhase& phase = worker.add_shadow(draft, sent_at, live.link.shadow->unread);
  const bool more = std::any_of(requests.begin(), requests.end(), [&](const auto& item) {
    const auto& other = item.second->link;
    return item.second.get() != &live && other.peer == live.link.peer && other.shadow && !other.shadow->ids &&
           other.shadow->sent_at == sent_at;
  });
  if (more) return;
  const double wait = std::chrono::duration<double>(waited).count();
  const double prefill = static_cast<double>(phase.prefill_ns) * 1e-9;
  const double drafting = static_cast<double>(phase.drafting_ns) * 1e-9;
  const bool has_read = phase.unread > kCatchUpTokens;  // a long prefill makes its time no measure of a token
  ShadowDrafting shadow{.tokens = phase.longest,
                        .busy = {},
                        .exchange = std::max(0.0, wait - prefill - drafting),
                        .prefill = has_read ? 0 : prefill};
  if (phase.longest > 1)
    shadow.busy = drafting / (phase.longest - 1) * phase.longest;
  else if (!has_read)
    shadow.busy = prefill;
  costs_.observe_shadow(worker.kind(), shadow);
  if (has_read) costs_.observe_prefill(worker.kind(), phase.unread, prefill);
}

void ShadowDrafts::compare(LiveRequest& live) const {
  auto& shadow = live.link.shadow;
  if (!shadow || !shadow->ids || live.finished()) return;
  const auto accepted = accepted_of(*shadow, live.sequence);
  if (!accepted) return;
  live.gamma->observe_shadow(tests(live) ? static_cast<int32_t>(shadow->ids->size()) : 0, *accepted);
  shadow.reset();
}

// Known once the text has grown past the draft, or differs from it.
std::optional<int32_t> ShadowDrafts::accepted_of(const ShadowDraft& shadow, const Sequence& sequence) const {
  const auto& ids = *shadow.ids;
  if (options_.synthetic_acceptance)
    return options_.synthetic_acceptance->accepted_count(sequence.id(), shadow.base.value(),
                                                         static_cast<int32_t>(ids.size()));
  const auto text = sequence.ids_from(shadow.base.value());
  const auto reach = std::min(ids.size(), text.size());
  const auto accepted = static_cast<size_t>(
      std::mismatch(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(reach), text.begin()).first -
      ids.begin());
  if (accepted == text.size() && accepted < ids.size()) return std::nullopt;
  return static_cast<int32_t>(accepted);
}

}  // namespace outrider
