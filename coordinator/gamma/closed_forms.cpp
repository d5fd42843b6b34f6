#include "coordinator/gamma/closed_forms.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "coordinator/gamma/acceptance.h"

namespace outrider {

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

double ahead_carry_speedup(double alpha, int32_t gamma, double draft, double verify, double delay) {
  const double repeats = std::pow(alpha, gamma + 1) / (1 - std::pow(alpha, gamma));
  return 1 / (1 - alpha) / (2 * delay + draft + verify + std::max(verify, draft) * repeats);
}

// A renewal argument: after a pass that drew j + 1 tokens the rest is a draft that is j + 1 tokens shorter.
StagedDraft staged_draft(double beta, int32_t gamma, int32_t guesses) {
  std::vector<StagedDraft> of{{}};  // by length
  for (int32_t length = 1; length <= gamma; ++length) {
    const int32_t read = std::min(guesses, length - 1);
    StagedDraft& draft = of.emplace_back(StagedDraft{.passes = 1, .rows = 1.0 + read});
    double all_right = 1;
    for (int32_t right = 0; right <= read; ++right) {
      const double chance = right < read ? all_right * (1 - beta) : all_right;
      const StagedDraft& behind = of[static_cast<size_t>(length - 1 - right)];
      draft.passes += chance * behind.passes;
      draft.rows += chance * behind.rows;
      all_right *= beta;
    }
  }
  return of.back();
}

}  // namespace outrider
