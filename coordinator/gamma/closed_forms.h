// Expected speed-up over plain decoding in closed form. Time unit: one plain target step. alpha: chance that
// a tested draft token is accepted, independent of all else.
#pragma once

#include <cstdint>

namespace outrider {

// rho: draft step, delay: one way, per_token: extra verify time of a draft token.
double lockstep_speedup(double alpha, int32_t gamma, double rho, double delay, double per_token);
struct BestGamma {
  int32_t gamma = 0;
  double speedup = 1;
};
// Integer search over 1..limit; of equals the smaller. No wider tie: at alpha 0.7, rho 0.05 the published
// optimum is ahead of its neighbour by only 7e-7.
BestGamma best_lockstep_gamma(double alpha, double rho, double delay, double per_token, int32_t limit = 64);

// Blocks drafted ahead, the first token of the next one tested by the bonus token. draft: time of a block.
double ahead_carry_speedup(double alpha, int32_t gamma, double draft, double verify, double delay);

// A draft of `gamma` tokens whose drafter has a drafter itself: each of its passes reads at most `guesses`
// guessed tokens, and draws the right ones, each right with chance `beta`, and one more (staged speculative
// decoding, Spector and Re 2023; cascades, Chen et al. 2024). The last token of a draft is never read, so
// passes near its end are shorter. Both figures are means over the number of right guesses.
struct StagedDraft {
  double passes = 0;
  double rows = 0;  // of all passes
  // The cost in draft steps, if each further row of a pass costs `row` steps; without guesses it is gamma.
  double steps(double row) const { return passes + row * (rows - passes); }
};
StagedDraft staged_draft(double beta, int32_t gamma, int32_t guesses);

}  // namespace outrider
