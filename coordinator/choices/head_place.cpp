#include "coordinator/choices/head_place.h"

#include <algorithm>

namespace outrider {
namespace {

constexpr int32_t kTrialLength = 2;        // steps,
constexpr int32_t kHopefulTrial = 8;       // if costs predict shorter rounds at the worker
constexpr int32_t kLongestRehearsal = 64;  // steps
constexpr double kMaxSlowdown = 3;         // a larger slowdown is not tried
constexpr int64_t kBetween = 8;            // least number of steps between two trials
constexpr int64_t kBetweenPromising = 4;   // the same where the worker may be the better place
constexpr int32_t kMaxDeclined = 7;        // limit of declined rehearsals, each of which doubles the pause

}  // namespace

void HeadPlace::decide(double slowdown) {
  ++steps_;
  decide_phase(slowdown);
  at_worker_ = ways_.other_is_better() != (phase_ == Phase::kTrial);
}

void HeadPlace::decide_phase(double slowdown) {
  switch (phase_) {
    case Phase::kSettled:
      ways_.compare();
      if (!is_due()) return;
      if (ways_.other_is_better() || has_just_tried()) return begin_trial(kTrialLength);
      phase_ = Phase::kRehearsal;
      heard_ = false;
      left_ = kLongestRehearsal;
      return;
    case Phase::kRehearsal:
      if (heard_ && slowdown < kMaxSlowdown) return begin_trial(slowdown < 1 ? kHopefulTrial : kTrialLength);
      if (!heard_ && --left_ > 0) return;
      phase_ = Phase::kSettled;
      last_ = steps_;
      declined_ = std::min(declined_ + 1, kMaxDeclined);
      return;
    case Phase::kTrial:
      if (--left_ > 0) return;
      phase_ = Phase::kSettled;
      last_ = steps_;
  }
}

void HeadPlace::begin_trial(int32_t length) {
  phase_ = Phase::kTrial;
  left_ = length;
  declined_ = 0;
  ++trials_;
}

// Whether the worker has prefilled all but the last few tokens.
bool HeadPlace::has_just_tried() const {
  return trials_ > 0 && declined_ == 0 && steps_ - last_ <= kBetweenPromising;
}

bool HeadPlace::is_due() const {
  const int64_t between = ways_.is_promising() ? kBetweenPromising : kBetween;
  return ways_.may_try() && steps_ - last_ >= between << declined_;
}

// The target drafts for a round in the pass before it. A rehearsal belongs to no round and is charged like a
// trial.
void HeadPlace::observe(bool at_worker, int32_t emitted, double seconds) {
  const double own = seconds - drafting_ + (at_worker ? 0 : drafting_before_);
  if (phase_ == Phase::kRehearsal) return ways_.charge(own - ways_.round_seconds());
  ways_.observe(at_worker, emitted, std::max(1e-9, own));
}

}  // namespace outrider
