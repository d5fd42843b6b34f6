// Chooses where a head drafts that exists both beside the target and at a draft worker (--head-place auto);
// the rounds of a step, which share a pass, all use one place. Keeps the place with more tokens per second,
// and tries the other now and then (two_ways.h). Before a trial a worker rehearses: it is sent the rows that
// it has missed, and makes a probe draft. A worker without an answer, or whose answer shows that rounds would
// take several times as long, is not tried. Uses finished rounds only. Pure.
#pragma once

#include <utility>

#include "coordinator/costs/two_ways.h"

namespace outrider {

class HeadPlace {
 public:
  // Decides before a step whose following rounds a worker could draft for. `slowdown`: time of a round with
  // the worker's draft over that with the target's own, as far as costs are known.
  void decide(double slowdown);
  // The decision for the rounds after that step.
  bool at_worker() const { return at_worker_; }
  bool rehearses() const { return phase_ == Phase::kRehearsal && !heard_; }
  // Whether workers are sent hidden states of the target.
  bool tells_rows() const { return at_worker_ || phase_ == Phase::kRehearsal; }
  // A draft of the rehearsal came.
  void heard() { heard_ = true; }

  // A pass is over in which the target spent `drafting` seconds on drafts for the next pass.
  void pass_over(double drafting) { drafting_before_ = std::exchange(drafting_, drafting); }
  // A round of that pass is over, `seconds` after its beginning.
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
  int32_t declined_ = 0;  // consecutive rehearsals without a trial
  int64_t steps_ = 0, last_ = 0, trials_ = 0;
  double drafting_ = 0, drafting_before_ = 0;
};

}  // namespace outrider
