// How a policy at gamma 0 finds out that drafting pays again, without ever paying much for it: plain rounds
// earn 1 % of their time, a probe runs when the credit covers what it is predicted to cost, and is charged
// what it really cost, unless it lost its core to other programs. A probe that was accepted paid for itself,
// so the next one follows at once; a useless or very slow drafter costs at most about 1 %.
#pragma once

#include "coordinator/gamma/gamma_policy.h"

namespace outrider {

class ProbeBudget {
 public:
  static constexpr int32_t kLength = 2;

  // Called for a round that would be plain: 0, or the length of a probe.
  int32_t next(const GammaContext& context);
  // Called for the outcome of that round.
  void update(const RoundOutcome& outcome);

 private:
  double credit_ = 0;     // seconds
  double plain_ = 0;      // predicted for the round that runs, had it been plain
  double predicted_ = 0;  // what a probe is predicted to cost
  double longest_ = 0;    // the most that the round that runs may be charged, or earn by
};

}  // namespace outrider
