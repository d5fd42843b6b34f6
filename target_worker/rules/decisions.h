// The accept-or-reject arithmetic of the rules, on the few numbers it needs per draft token. Shared by the
// whole-row rules and the sharded verifier, which obtains the same numbers from reduced integers.
#pragma once

#include <span>
#include <vector>

#include "base/types.h"

namespace outrider {

struct TestedToken {
  double p = 0;  // of the draft token, under the target
  double q = 0;  // under the draft
  double u = 0;  // uniform in [0, 1)
};

// greedy, invariant, naive: how many draft tokens equal the target's own choice, row by row.
int count_matches(std::span<const TokenId> draft, std::span<const TokenId> target);

// token: the first draft token with u * q >= p ends the run (a product, strict: p = 0 is never accepted).
int count_token_accepted(std::span<const TestedToken> tests);

// block: running joint ratios P[0..gamma], clipped at 1 at every step.
void block_ratios(std::span<const TestedToken> tests, std::vector<double>& ratios);
// block: the last i with u_i < h_i wins. residual_mass[i] = S[i] = sum over v of max(0, P[i] p[v] - q[v]), i
// < gamma.
int count_block_accepted(std::span<const TestedToken> tests, std::span<const double> ratios,
                         std::span<const double> residual_mass);

// max(0, ratio * p - q) of a whole row.
void residual_row(std::span<const double> p, std::span<const double> q, double ratio,
                  std::vector<double>& out);

}  // namespace outrider
