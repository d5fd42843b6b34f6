// How far drafting has brought a batch ahead of plain decoding, in plain steps. While it is behind nobody
// drafts, trials apart: so whatever the estimates say, what drafting has lost stays below the start, and 1 %
// of the plain steps since.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace outrider {

inline constexpr double kTrialShare = 0.01;  // of plain steps, which drafts that only find out may lose

class Standing {
 public:
  bool is_behind() const { return steps_ < 0; }
  // For a prompt that was read. It is taken from what drafts gain, as soon as they have gained something.
  void charge(double steps) { debt_ += steps; }
  // A step is over that gained so much, or lost it, by the drafts that it asked for.
  void settle(bool asked, double gain) {
    // A doubted step cost what the one did that settled the doubt.
    const double all = gain * (1 + std::exchange(doubted_, 0));
    steps_ = std::clamp(steps_ + (asked ? all : kTrialShare), kMin, kMax);
    const double paid = std::clamp(steps_ - kMin, 0.0, debt_);
    steps_ -= paid;
    debt_ -= paid;
  }
  // One whose cost is doubted is over.
  void doubt(bool asked) { doubted_ += asked; }
  // What drafts would have gained that no round waited for. So a batch that is behind comes back.
  void settle_shadow(double gain) {
    if (is_behind()) steps_ = std::min(0.0, steps_ + gain);
  }

 private:
  static constexpr double kStart = 1.5;
  static constexpr double kMax = 8;   // past gains do not pay for a long loss
  static constexpr double kMin = -2;  // nor is a wrong estimate of one step paid for by a thousand others
  double steps_ = kStart;
  double debt_ = 0;  // for prompts, not yet taken
  int32_t doubted_ = 0;
};

}  // namespace outrider
