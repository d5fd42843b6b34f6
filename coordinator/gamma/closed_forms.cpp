#include "coordinator/gamma/closed_forms.h"

#include <algorithm>
#include <cmath>

#include "coordinator/gamma/acceptance.h"

namespace outrider {

double expected_tokens_without_bonus(double alpha, int32_t gamma) {
  return alpha >= 1 ? gamma : (1 - std::pow(alpha, gamma)) / (1 - alpha);
}

double lockstep_speedup(double alpha, int32_t gamma, double rho, double delay, double per_token) {
  return expected_tokens(alpha, gamma) / (1 + per_token * gamma + gamma * rho + 2 * delay);
}

BestGamma best_lockstep_gamma(double alpha, double rho, double delay, double per_token, int32_t limit) {
  BestGamma best{1, lockstep_speedup(alpha, 1, rho, delay, per_token)};
  for (int32_t gamma = 2; gamma <= limit; ++gamma) {
    const double speedup = lockstep_speedup(alpha, gamma, rho, delay, per_token);
    if (speedup > best.speedup * (1 + 1e-12)) best = {gamma, speedup};
  }
  return best;
}

double ahead_blocks_speedup(double alpha, int32_t gamma, double draft, double verify, double delay) {
  const double full = std::pow(alpha, gamma);
  return expected_tokens_without_bonus(alpha, gamma) /
         (full * std::max(verify, draft) + (1 - full) * (verify + draft + 2 * delay));
}

double ahead_carry_speedup(double alpha, int32_t gamma, double draft, double verify, double delay) {
  const double repeats = std::pow(alpha, gamma + 1) / (1 - std::pow(alpha, gamma));
  return 1 / (1 - alpha) / (2 * delay + draft + verify + std::max(verify, draft) * repeats);
}

double ahead_continuous_speedup(double alpha, int32_t first, int32_t per_pass, double rho, double verify,
                                double delay) {
  const double passes = 1 + std::pow(alpha, first) / (1 - std::pow(alpha, per_pass));
  return 1 / (1 - alpha) / (2 * delay + first * rho + verify * passes);
}

double cache_pull_speedup(double alpha, int32_t gamma, double hit, double draft, double verify,
                          double prepare, double delay) {
  const double round = verify + 2 * delay;
  return expected_tokens(alpha, gamma) / (hit * std::max(round, prepare) + (1 - hit) * (round + draft));
}

double cache_push_speedup(double alpha, int32_t gamma, double hit, double draft, double verify,
                          double prepare, double delay) {
  const double after_hit = std::max(verify, prepare + 2 * delay), after_miss = std::max(verify, prepare);
  return expected_tokens(alpha, gamma) /
         (hit * (hit * after_hit + (1 - hit) * after_miss) + (1 - hit) * (verify + 2 * delay + draft));
}

}  // namespace outrider
