#include "coordinator/rounds/probe_drafts.h"

#include <algorithm>

#include "cluster/acceptance_process.h"

namespace outrider {

void ProbeDrafts::take(LiveRequest& live, PoolWorker& worker, Draft& draft, const RequestMap& requests,
                       Clock::time_point now) {
  ProbeDraft& probe_draft = *live.link.probe_draft;
  const Clock::duration lost = live.link.proposal.lost_time(draft), waited = now - probe_draft.sent_at;
  // The exchange may include the wait for a pass, which keeps the reader of messages busy.
  const auto pass = std::chrono::duration<double>(costs_.all().verify_seconds(1, 0));
  worker.answer_time().lost(lost > Clock::duration(0));
  worker.answer_time().suppose(waited - lost - busy_time(draft) -
                               std::chrono::duration_cast<Clock::duration>(pass));
  learn_costs(live, worker, draft, live.link.proposal.guessed ? waited - lost : waited, requests);
  probe_draft.ids = std::move(draft.ids);
  compare(live);
}

// The cost of a step's drafts is known with its last draft, `waited` after the request. The first token of
// each draft comes from the pass that prefills the text, so the other tokens show the cost of a token.
void ProbeDrafts::learn_costs(const LiveRequest& live, PoolWorker& worker, const Draft& draft,
                              Clock::duration waited, const RequestMap& requests) {
  const Clock::time_point sent_at = live.link.probe_draft->sent_at;
  const ProbeDraftPhase& phase = worker.add_probe_draft(draft, sent_at, live.link.probe_draft->unread);
  const bool more = std::any_of(requests.begin(), requests.end(), [&](const auto& item) {
    const auto& other = item.second->link;
    return item.second.get() != &live && other.peer == live.link.peer && other.probe_draft &&
           !other.probe_draft->ids && other.probe_draft->sent_at == sent_at;
  });
  if (more) return;
  const double wait = std::chrono::duration<double>(waited).count();
  const double prefill = static_cast<double>(phase.prefill_ns) * 1e-9;
  const double drafting = static_cast<double>(phase.drafting_ns) * 1e-9;
  const bool has_read = phase.unread > kCatchUpTokens;  // a long prefill makes its time no measure of a token
  ProbeDrafting probe_draft{.tokens = phase.longest,
                            .busy = {},
                            .exchange = std::max(0.0, wait - prefill - drafting),
                            .prefill = has_read ? 0 : prefill};
  if (phase.longest > 1)
    probe_draft.busy = drafting / (phase.longest - 1) * phase.longest;
  else if (!has_read)
    probe_draft.busy = prefill;
  costs_.observe_probe_draft(worker.kind(), probe_draft);
  if (has_read) costs_.observe_prefill(worker.kind(), phase.unread, prefill);
}

void ProbeDrafts::compare(LiveRequest& live) const {
  auto& probe_draft = live.link.probe_draft;
  if (!probe_draft || !probe_draft->ids || live.finished()) return;
  const auto accepted = accepted_of(*probe_draft, live.sequence);
  if (!accepted) return;
  const auto drafted = static_cast<int32_t>(probe_draft->ids->size());
  live.gamma->observe_probe_draft(tests(live) ? drafted : 0, *accepted);
  if (tests(live) && live.kind != 0) costs_.observe_acceptance(live.kind, drafted, *accepted);
  probe_draft.reset();
}

// Known once the text has grown past the draft, or differs from it.
std::optional<int32_t> ProbeDrafts::accepted_of(const ProbeDraft& probe_draft,
                                                const Sequence& sequence) const {
  const auto& ids = *probe_draft.ids;
  if (options_.synthetic_acceptance)
    return options_.synthetic_acceptance->accepted_count(sequence.id(), probe_draft.base.value(),
                                                         static_cast<int32_t>(ids.size()));
  const auto text = sequence.ids_from(probe_draft.base.value());
  const auto reach = std::min(ids.size(), text.size());
  const auto accepted = static_cast<size_t>(
      std::mismatch(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(reach), text.begin()).first -
      ids.begin());
  if (accepted == text.size() && accepted < ids.size()) return std::nullopt;
  return static_cast<int32_t>(accepted);
}

}  // namespace outrider
