#include "coordinator/gamma/probe_budget.h"

#include <algorithm>

#include "coordinator/gamma/acceptance.h"

namespace outrider {
namespace {

constexpr double kShare = 0.01;
constexpr double kHeldUp = 2;     // times the prediction; a longer round was delayed by others
constexpr double kMaxProbes = 4;  // credit limit, in probes: a burst can confirm what one probe found

}  // namespace

int32_t ProbeBudget::next(const GammaContext& context) {
  if (context.limit < kLength) return 0;
  const CostModel& cost = cost_of(context.cost);
  const VerifyCost verify = cost.verify();
  plain_ = cost.round_seconds(0, context.batch_size, context.context_length);
  // The whole batch waits for one sequence's probe.
  predicted_ = context.batch_size * (cost.draft_phase_seconds(kLength, kLength) + verify.per_row * kLength +
                                     context.prefill_seconds);
  longest_ = kHeldUp * (plain_ + predicted_);
  return credit_ >= predicted_ ? kLength : 0;
}

void ProbeBudget::update(const RoundOutcome& outcome) {
  const double seconds = std::min(longest_, static_cast<double>(outcome.round_ns) * 1e-9);
  if (outcome.proposed == 0) {
    credit_ += kShare * seconds;
  } else {
    const double others = (outcome.batch_size - 1) * std::max(0.0, seconds - plain_);
    credit_ -= seconds - plain_ * (outcome.accepted + 1) + others;
  }
  credit_ = std::min(credit_, kMaxProbes * predicted_);
}

}  // namespace outrider
