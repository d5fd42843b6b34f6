#include "coordinator/rounds/pool_worker.h"

namespace outrider {
namespace {

constexpr int32_t kMaxMisses = 20;  // limit of the growth of pauses

}  // namespace

// Rounds of a batch that miss in one outage count as one miss: those begun before a pause do not lengthen it.
// The pause follows the time that was waited, so the share of lost time falls.
void PoolWorker::missed(Clock::duration waited, Clock::duration longest_pause, Clock::time_point now) {
  silent_ = true;
  silent_until_ = now + longest_pause;
  if (now < resume_at_) return;
  misses_ = std::min(misses_ + 1, kMaxMisses);
  resume_at_ = now + std::min<Clock::duration>(waited * (int64_t{1} << misses_), longest_pause);
}

void PoolWorker::waited(Clock::duration time, int32_t tokens, Clock::time_point now) {
  const double ns = static_cast<double>(std::chrono::nanoseconds(time).count()) / tokens;
  token_ns_ = token_ns_ == 0 ? ns : 0.8 * token_ns_ + 0.2 * ns;
  measured_at_ = now;
}

const ProbeDraftPhase& PoolWorker::add_probe_draft(const Draft& draft, Clock::time_point sent_at,
                                                   int32_t unread) {
  if (probe_drafts_.sent_at != sent_at) probe_drafts_ = {.sent_at = sent_at};
  probe_drafts_.longest = std::max(probe_drafts_.longest, static_cast<int32_t>(draft.ids.size()));
  probe_drafts_.unread += unread;
  probe_drafts_.prefill_ns += draft.ingest_ns;
  probe_drafts_.drafting_ns += draft.draft_ns;
  return probe_drafts_;
}

}  // namespace outrider
