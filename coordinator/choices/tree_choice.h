// Decides for --speculative-tree auto whether drafts branch: tries both trees and chains, and keeps the form
// with more tokens per second (two_ways.h). Pure.
#pragma once

#include "coordinator/costs/two_ways.h"

namespace outrider {

class TreeChoice {
 public:
  // The decision for all rounds that begin before this step: they share a pass, so they share the form.
  bool branches(uint64_t step);
  // A round with a draft is over: `emitted` tokens in `seconds`.
  void observe(bool branched, int32_t emitted, double seconds) { ways_.observe(branched, emitted, seconds); }
  // Tokens per second of a sequence, in its present form.
  double rate() const { return ways_.rate(); }

 private:
  bool tries_the_other();

  TwoWays ways_;
  uint64_t step_ = 0, steps_ = 0, last_trial_ = 0;
  int32_t trial_left_ = 0;  // steps
  bool branches_ = false;
};

}  // namespace outrider
