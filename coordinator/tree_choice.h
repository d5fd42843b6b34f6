// Whether drafts branch, where that is to be found out (--speculative-tree auto): trees and chains are both
// tried, and what brought more tokens per second is kept (two_ways.h). Pure.
#pragma once

#include "coordinator/two_ways.h"

namespace outrider {

class TreeChoice {
 public:
  // For all rounds that begin before this step, which share a pass and so fare alike.
  bool branches(uint64_t step);
  // A round with a draft is over: tokens that it brought to its sequence, seconds that it took.
  void observe(bool branched, int32_t emitted, double seconds) { ways_.observe(branched, emitted, seconds); }
  // Tokens per second of a sequence, as its rounds are now.
  double rate() const { return ways_.rate(); }

 private:
  bool tries_the_other();

  TwoWays ways_;
  uint64_t step_ = 0, steps_ = 0, last_trial_ = 0;
  int32_t trial_left_ = 0;  // steps
  bool branches_ = false;
};

}  // namespace outrider
