// Where a head drafts that is both beside the target and at a draft worker (--head-place auto): at one of the
// two for all rounds behind a step, which share a pass. The place that brought more tokens per second is
// kept, and the other is tried now and then (two_ways.h). A worker that is to be tried rehearses first: it is
// sent the rows that it has missed, and drafts with nobody waiting for it. One that does not answer, or whose
// answer shows that rounds would take several times as long, is not tried. Looks at rounds that are over.
// Pure.
#pragma once

#include <utility>

#include "coordinator/two_ways.h"

namespace outrider {

class HeadPlace {
 public:
  // Before a step is planned behind which a worker could draft. `slowdown`: how many times as long a round
  // with its draft takes as one with the target's own, as far as costs are known.
  void decide(double slowdown);
  // For the rounds behind that step.
  bool at_worker() const { return at_worker_; }
  bool rehearses() const { return phase_ == Phase::kRehearsal && !heard_; }
  // Workers are sent rows of the target's states.
  bool tells_rows() const { return at_worker_ || phase_ == Phase::kRehearsal; }
  // A draft of the rehearsal came.
  void heard() { heard_ = true; }

  // A pass is over, in which the target drafted for the next one for so many seconds.
  void pass_over(double drafting) { drafting_before_ = std::exchange(drafting_, drafting); }
  // A round of that pass is over, which took so long from its beginning.
  void observe(bool at_worker, int32_t emitted, double seconds);

  int64_t trials() const { return trials_; }

 private:
  enum class Phase : uint8_t { kSettled, kRehearsal, kTrial };
  void decide_phase(double slowdown);
  void begin_trial(int32_t length);
  bool has_just_tried() const;
  bool is_due() const;

  TwoWays ways_;  // the other one is the worker
  Phase phase_ = Phase::kSettled;
  bool at_worker_ = false, heard_ = false;
  int32_t left_ = 0;      // steps of the phase
  int32_t declined_ = 0;  // rehearsals in a row after which nothing was tried
  int64_t steps_ = 0, last_ = 0, trials_ = 0;
  double drafting_ = 0, drafting_before_ = 0;
};

}  // namespace outrider
