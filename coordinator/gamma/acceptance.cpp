#include "coordinator/gamma/acceptance.h"

#include <cmath>

namespace outrider {

double expected_tokens(double alpha, int32_t gamma) {
  return alpha >= 1 ? gamma + 1 : (1 - std::pow(alpha, gamma + 1)) / (1 - alpha);
}

void AcceptanceEwma::update(int32_t drafted, int32_t accepted) {
  if (drafted == 0) return;
  accepted_ = decay_ * accepted_ + accepted;
  tested_ = decay_ * tested_ + accepted + (accepted < drafted ? 1 : 0);
}

void AcceptanceEwma::forget(double share) {
  accepted_ *= 1 - share;
  tested_ *= 1 - share;
}

const CostModel& cost_of(const CostModel* cost) {
  static const CostModel kNothingKnown;
  return cost ? *cost : kNothingKnown;
}

double gamma_rate(double tokens, int32_t gamma, const GammaContext& context) {
  return tokens / cost_of(context.cost).round_seconds(gamma, context.batch_size, context.context_length);
}

GammaChoice best_gamma(std::span<const double> tokens, const GammaContext& context) {
  constexpr double kTie = 1e-6;
  const CostModel& cost = cost_of(context.cost);
  const int64_t tokens_in_cache = int64_t{context.batch_size} * context.context_length;
  GammaChoice best;
  for (int32_t gamma = 0; gamma < static_cast<int32_t>(tokens.size()); ++gamma) {
    const double seconds = cost.verify_seconds(context.batch_size * (gamma + 1), tokens_in_cache) +
                           cost.draft_phase_seconds(gamma, gamma * context.batch_size);
    const double rate = tokens[static_cast<size_t>(gamma)] / seconds;
    if (gamma == 0 || rate > best.rate * (1 + kTie)) best = {gamma, rate};
  }
  return best;
}

}  // namespace outrider
