// Lets a policy at gamma 0 find out that drafting pays again, at a small cost: plain rounds earn 1 % of their
// time, a probe runs when the credit covers its predicted cost, and is charged its real cost, unless other
// programs took its core. An accepted probe pays for itself, so the next one follows at once; a useless or
// very slow drafter costs at most about 1 %.
#pragma once

#include "coordinator/gamma/gamma_policy.h"

namespace outrider {

class ProbeBudget {
 public:
  static constexpr int32_t kLength = 2;

  // For a round that would be plain: returns 0, or the length of a probe.
  int32_t next(const GammaContext& context);
  // Takes the outcome of that round.
  void update(const RoundOutcome& outcome);

 private:
  double credit_ = 0;     // seconds
  double plain_ = 0;      // predicted time of the current round, had it been plain
  double predicted_ = 0;  // predicted cost of a probe
  double longest_ = 0;    // limit of a charge or gain by the current round
};

}  // namespace outrider
