#include "coordinator/tree_choice.h"

#include <algorithm>
#include <cmath>

namespace outrider {
namespace {

constexpr double kRoundMemory = 0.998;  // of a round, at the next one of its kind
constexpr double kRoundScatter = 0.6;   // of a round's tokens per second, as a share of their mean
constexpr double kTrialTime = 0.004;    // of the time, for trials
constexpr int64_t kFirstChains = 24;    // rounds, before the first tree
constexpr int64_t kFirstTrees = 12;     // rounds, before the two are compared
constexpr double kFirstCredit = 5, kMostCredit = 5;  // rounds' time
constexpr int32_t kTrialLength = 2;                  // steps
constexpr uint64_t kBetween = 8;                     // steps from one trial to the next, at least,
constexpr uint64_t kBetweenPromising = 4;            // and where trees may be the better

}  // namespace

void TreeChoice::Rounds::add(int32_t emitted, double round_seconds) {
  tokens = tokens * kRoundMemory + emitted;
  seconds = seconds * kRoundMemory + round_seconds;
  weight = weight * kRoundMemory + 1;
  ++count;
}

double TreeChoice::Rounds::variance() const { return kRoundScatter * kRoundScatter / std::max(1.0, weight); }

void TreeChoice::observe(bool branched, int32_t emitted, double seconds) {
  Rounds& rounds = of(branched);
  rounds.add(emitted, seconds);
  if (branched != better_ && of(true).count > 1)
    credit_ -= seconds * std::max(0.0, 1 - rounds.rate() / of(better_).rate());
  else
    credit_ += seconds * (of(false).count <= kFirstChains ? kFirstCredit / kFirstChains : kTrialTime);
  const Rounds& usual = of(better_);
  if (usual.weight > 0) credit_ = std::min(credit_, kMostCredit * usual.seconds / usual.weight);
}

bool TreeChoice::branches(uint64_t step) {
  if (steps_ > 0 && step == step_) return branches_;
  step_ = step;
  ++steps_;
  if (of(false).count < kFirstChains) return branches_ = false;
  compare();
  return branches_ = better_ != tries_the_other();
}

// Trees must have shown that they are better; a chain need not.
void TreeChoice::compare() {
  if (of(true).count < kFirstTrees) return;
  const double gain = of(true).rate() / of(false).rate() - 1;
  if (gain > std::sqrt(of(true).variance() + of(false).variance()))
    better_ = true;
  else if (gain < 0)
    better_ = false;
}

bool TreeChoice::tries_the_other() {
  if (trial_left_ > 0) return --trial_left_, true;
  const bool promising = !better_ && (of(true).count < kFirstTrees || of(true).rate() > of(false).rate());
  if (credit_ <= 0 || steps_ - last_trial_ < (promising ? kBetweenPromising : kBetween)) return false;
  last_trial_ = steps_;
  trial_left_ = kTrialLength - 1;
  return true;
}

}  // namespace outrider
