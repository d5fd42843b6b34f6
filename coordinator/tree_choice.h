// Whether drafts branch, where that is to be found out (--speculative-tree auto): trees and chains are both
// tried, and what brought more tokens per second is kept. What is worse is tried again as often as a small
// share of the time pays for, so that a tree that loses half of the speed is tried rarely, and one that is
// level often. Looks at rounds that are over. Pure.
#pragma once

#include <array>
#include <cstdint>

namespace outrider {

class TreeChoice {
 public:
  // For all rounds that begin before this step, which share a pass and so fare alike.
  bool branches(uint64_t step);
  // A round with a draft is over: tokens that it brought to its sequence, seconds that it took.
  void observe(bool branched, int32_t emitted, double seconds);
  // Tokens per second of a sequence, as its rounds are now.
  double rate() const { return of(better_).rate(); }

 private:
  // Over some hundreds of rounds: a round brings one token or many.
  struct Rounds {
    double tokens = 0, seconds = 0, weight = 0;
    int64_t count = 0;
    void add(int32_t emitted, double round_seconds);
    double rate() const { return seconds > 0 ? tokens / seconds : 0; }
    double variance() const;  // of the rate, as a share of it, squared
  };
  Rounds& of(bool branched) { return rounds_[branched ? 1 : 0]; }
  const Rounds& of(bool branched) const { return rounds_[branched ? 1 : 0]; }
  void compare();
  bool tries_the_other();

  std::array<Rounds, 2> rounds_;
  uint64_t step_ = 0, steps_ = 0, last_trial_ = 0;
  int32_t trial_left_ = 0;  // steps
  double credit_ = 0;       // seconds that trials may still lose
  bool branches_ = false, better_ = false;
};

}  // namespace outrider
