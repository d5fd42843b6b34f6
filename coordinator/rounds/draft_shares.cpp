#include "coordinator/rounds/draft_shares.h"

#include <algorithm>
#include <limits>

namespace outrider {
namespace {

// Draft tokens of some of a plan's rounds.
struct Drafts {
  int32_t longest = 0, total = 0;
  void add(int32_t tokens) {
    longest = std::max(longest, tokens);
    total += tokens;
  }
};

// Counts a late draft, too, because the drafter worked on it. A lookup in the text costs only its rows.
int32_t tokens_of(const PlannedEntry& entry) {
  const RoundInFlight& round = entry.live->round;
  return entry.sampling ? std::max(round.found() ? 0 : round.gamma, round.drafted()) : 0;
}

// The time added by the drafts of the paying requests, in plain passes.
double added(const Drafts& others, const Drafts& payers, int32_t rows, int64_t context,
             const CostModel& cost) {
  const double without = cost.verify_seconds(rows + others.total, context) +
                         cost.draft_phase_seconds(others.longest, others.total);
  const double with =
      cost.verify_seconds(rows + others.total + payers.total, context) +
      cost.draft_phase_seconds(std::max(others.longest, payers.longest), others.total + payers.total);
  const double plain = cost.verify_seconds(rows, context);
  return plain > 0 ? std::max(0.0, with - without) / plain : 0;
}

}  // namespace

void DraftShares::settle(std::span<const PlannedEntry> plan, RequestMap& requests, const CostModel& cost) {
  Drafts others, payers;
  int64_t context = 0;
  for (const PlannedEntry& entry : plan) {
    context += entry.live->sequence.committed();
    (entry.live->request.pays_for_drafts ? payers : others).add(tokens_of(entry));
  }
  if (payers.total > 0) {
    const double price = added(others, payers, static_cast<int32_t>(plan.size()), context, cost);
    for (const PlannedEntry& entry : plan)
      if (DraftDebt& debt = entry.live->debt; entry.live->request.pays_for_drafts && tokens_of(entry) > 0) {
        debt.newest = price * tokens_of(entry) / payers.total;
        debt.owed += debt.newest;
      }
  }
  double least = std::numeric_limits<double>::infinity(), running = 0;
  for (const auto& [id, live] : requests) {
    if (!live->running()) continue;
    ++running;
    least = std::min(least, live->debt.owed);
  }
  if (running == 0) return;
  for (const auto& [id, live] : requests)
    live->debt.owed = std::max(0.0, live->debt.owed - std::max(least, kShare / running));
}

}  // namespace outrider
