#include "coordinator/costs/two_ways.h"

#include <algorithm>
#include <cmath>

namespace outrider {
namespace {

constexpr double kRoundMemory = 0.998;  // weight of a round at the next one of its kind
constexpr double kRoundScatter = 0.6;   // of a round's tokens per second, as a share of their mean
constexpr double kTrialTime = 0.004;    // share of the time for trials
constexpr double kFirstCredit = 5, kMaxCredit = 5;  // in round times

}  // namespace

void TwoWays::Rounds::add(int32_t emitted, double round_seconds) {
  tokens = tokens * kRoundMemory + emitted;
  seconds = seconds * kRoundMemory + round_seconds;
  weight = weight * kRoundMemory + 1;
  ++count;
}

double TwoWays::Rounds::variance() const { return kRoundScatter * kRoundScatter / std::max(1.0, weight); }

void TwoWays::observe(bool other, int32_t emitted, double seconds) {
  Rounds& rounds = of(other);
  rounds.add(emitted, seconds);
  if (other != other_is_better_ && of(true).count > 1)
    credit_ -= seconds * std::max(0.0, 1 - rounds.rate() / of(other_is_better_).rate());
  else
    credit_ += seconds * (of(false).count <= kFirstUsual ? kFirstCredit / kFirstUsual : kTrialTime);
  credit_ = std::min(credit_, kMaxCredit * round_seconds());
}

// The other way must have proved better; the usual one need not.
void TwoWays::compare() {
  if (of(true).count < kFirstOther) return;
  const double gain = of(true).rate() / of(false).rate() - 1;
  if (gain > std::sqrt(of(true).variance() + of(false).variance()))
    other_is_better_ = true;
  else if (gain < 0)
    other_is_better_ = false;
}

bool TwoWays::is_promising() const {
  return !other_is_better_ && (of(true).count < kFirstOther || of(true).rate() > of(false).rate());
}

double TwoWays::round_seconds() const {
  const Rounds& usual = of(other_is_better_);
  return usual.weight > 0 ? usual.seconds / usual.weight : 0;
}

}  // namespace outrider
