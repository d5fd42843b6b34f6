#include "coordinator/choices/tree_choice.h"

namespace outrider {
namespace {

constexpr int32_t kStepsOfTrial = 2;              // steps
constexpr uint64_t kStepsBetweenTrials = 8;       // least number of steps between two trials
constexpr uint64_t kStepsBetweenIfPromising = 4;  // the same where trees may be better

}  // namespace

bool TreeChoice::branches(uint64_t step) {
  if (steps_ > 0 && step == step_) return branches_;
  step_ = step;
  ++steps_;
  ways_.compare();
  return branches_ = ways_.other_is_better() != tries_the_other();
}

bool TreeChoice::tries_the_other() {
  if (trial_left_ > 0) return --trial_left_, true;
  const uint64_t between = ways_.is_promising() ? kStepsBetweenIfPromising : kStepsBetweenTrials;
  if (!ways_.may_try() || steps_ - last_trial_ < between) return false;
  last_trial_ = steps_;
  trial_left_ = kStepsOfTrial - 1;
  return true;
}

}  // namespace outrider
