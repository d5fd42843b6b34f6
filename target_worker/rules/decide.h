// One draft token's accept test, shared by the rules, the sharded verifier and the CUDA kernels.
#pragma once

#include "base/shared_code.h"

namespace outrider {

// token: a product, strict, so that p = 0 is never accepted.
OUTRIDER_SHARED_CODE inline bool token_accepted(double p, double q, double u) { return u * q < p; }

// block: P[i + 1] from P[i], clipped at 1. A drafted token has q > 0; with q = 0 the ratio would be unbounded
// unless p is 0 too.
OUTRIDER_SHARED_CODE inline double next_block_ratio(double ratio, double p, double q) {
  const double joint = ratio * p;
  const double next = q > 0 ? joint / q : (joint > 0 ? 1.0 : 0.0);
  return next < 1.0 ? next : 1.0;
}

// block: u < h with h = S / (S + 1 - P), tested without the division (0/0 counts as 0); the whole block's h
// is P itself. `mass` is S.
OUTRIDER_SHARED_CODE inline bool block_accepted(double u, double ratio, double mass, bool whole_block) {
  return whole_block ? u < ratio : u * (mass + 1 - ratio) < mass;
}

}  // namespace outrider
