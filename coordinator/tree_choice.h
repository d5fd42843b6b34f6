// Whether drafts branch, where that is to be found out (--speculative-tree auto): trees and chains are both
// tried, and what brought more tokens per second is kept and questioned from time to time. Looks at rounds
// that are over. Pure.
#pragma once

#include <array>
#include <cstdint>

namespace outrider {

class TreeChoice {
 public:
  // For all rounds that begin before this step, which share a pass and so fare alike.
  bool branches(uint64_t step);
  // A round with a draft is over.
  void observe(bool branched, int32_t emitted, double seconds) { of(branched).add(emitted, seconds); }
  // Tokens per second of a sequence, as its rounds are now.
  double rate() { return of(better()).rate(); }

 private:
  // Steps between two trials, and of one: what is worse by a tenth costs 0.3 %.
  static constexpr uint64_t kBetween = 64, kTrial = 2;
  static constexpr int64_t kFirst = 24;  // rounds of each kind, before they are compared
  static constexpr double kClearly = 1.005;

  // Over some hundreds of rounds: a round brings one token or many.
  struct Rounds {
    double tokens = 0, seconds = 0;
    int64_t count = 0;
    void add(int32_t emitted, double round_seconds);
    double rate() const { return seconds > 0 ? tokens / seconds : 0; }
  };
  Rounds& of(bool branched) { return rounds_[branched ? 1 : 0]; }
  bool better();

  std::array<Rounds, 2> rounds_;
  uint64_t step_ = 0, steps_ = 0;
  bool branches_ = false, better_ = false;
};

}  // namespace outrider
