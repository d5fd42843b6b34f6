#include "coordinator/gamma/plain_guard.h"

#include <array>

namespace outrider {
namespace {

constexpr double kSwitchGain = 0.02;  // least predicted gain for a change

}  // namespace

int32_t PlainGuard::apply(int32_t wanted, const GammaContext& context) {
  if (!enabled_) return wanted;
  std::array<double, kDefaultGammaMax + 1> tokens{};
  for (size_t g = 0; g < tokens.size(); ++g)
    tokens[g] = expected_tokens(acceptance_.mean(), static_cast<int32_t>(g));
  const double plain = gamma_rate(1, 0, context);
  const double best = best_gamma(std::span(tokens).subspan(0), context).rate;
  off_ = best <= plain * (off_ ? 1 + kSwitchGain : 1);
  return off_ ? probes_.next(context) : wanted;
}

void PlainGuard::update(const RoundOutcome& outcome) {
  acceptance_.update(outcome.drafted, outcome.accepted);
  if (off_) probes_.update(outcome);
}

}  // namespace outrider
