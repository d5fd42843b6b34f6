#include "coordinator/tree_choice.h"

namespace outrider {

void TreeChoice::Rounds::add(int32_t emitted, double round_seconds) {
  constexpr double kMemory = 0.998;  // of a round, at the next one
  tokens = tokens * kMemory + emitted;
  seconds = seconds * kMemory + round_seconds;
  ++count;
}

bool TreeChoice::branches(uint64_t step) {
  if (steps_ > 0 && step == step_) return branches_;
  step_ = step;
  ++steps_;
  if (of(false).count < kFirst)
    branches_ = false;
  else if (of(true).count < kFirst)
    branches_ = true;
  else
    branches_ = better() != (steps_ % kBetween < kTrial);
  return branches_;
}

// What is done now stays until the other is clearly better.
bool TreeChoice::better() {
  if (of(!better_).rate() > kClearly * of(better_).rate()) better_ = !better_;
  return better_;
}

}  // namespace outrider
