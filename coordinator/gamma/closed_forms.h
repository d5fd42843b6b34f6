// Expected speed-up over plain decoding in closed form (algorithms.md section 4). Time unit: one plain target
// step. alpha: chance that a tested draft token is accepted, independent of all else.
#pragma once

#include <cstdint>

namespace outrider {

// 4.1: tokens of a round without a bonus token; with one it is expected_tokens().
double expected_tokens_without_bonus(double alpha, int32_t gamma);

// 4.2: rho draft step, delay one way, per_token extra verify time of a draft token.
double lockstep_speedup(double alpha, int32_t gamma, double rho, double delay, double per_token);
struct BestGamma {
  int32_t gamma = 0;
  double speedup = 1;
};
// Integer search over 1..limit; of equals the smaller. No wider tie: at alpha 0.7, rho 0.05 the published
// optimum is ahead of its neighbour by only 7e-7.
BestGamma best_lockstep_gamma(double alpha, double rho, double delay, double per_token, int32_t limit = 64);

// 4.3: block drafting time, verify time.
double ahead_blocks_speedup(double alpha, int32_t gamma, double draft, double verify, double delay);
double ahead_carry_speedup(double alpha, int32_t gamma, double draft, double verify, double delay);
// The target restarts as soon as `first` tokens are there; `per_pass` = verify / rho tokens arrive in a pass.
double ahead_continuous_speedup(double alpha, int32_t first, int32_t per_pass, double rho, double verify,
                                double delay);

// 4.4: hit rate and time to prepare the outcomes.
double cache_pull_speedup(double alpha, int32_t gamma, double hit, double draft, double verify,
                          double prepare, double delay);
double cache_push_speedup(double alpha, int32_t gamma, double hit, double draft, double verify,
                          double prepare, double delay);

}  // namespace outrider
