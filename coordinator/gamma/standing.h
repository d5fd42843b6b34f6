// The lead of drafting over plain decoding in a batch, in plain steps. While the lead is negative the batch
// does not draft, trials excepted. So drafting never loses more than the starting credit plus 1 % of the
// plain steps since, however wrong the estimates are.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace outrider {

inline constexpr double kTrialShare = 0.01;  // of plain steps; the part that exploring drafts may lose

class Standing {
 public:
  bool is_behind() const { return steps_ < 0; }
  // Charges the prefill of a prompt. It is deducted from the gains of drafts as they come.
  void charge(double steps) { debt_ += steps; }
  // A step is over. `gain`: plain steps gained or lost by the drafts that it asked for.
  void settle(bool asked, double gain) {
    // A doubted step is charged what the step that settled the doubt gained or lost.
    const double all = gain * (1 + std::exchange(doubted_, 0));
    steps_ = std::clamp(steps_ + (asked ? all : kTrialShare), kMin, kMax);
    const double paid = std::clamp(steps_ - kMin, 0.0, debt_);
    steps_ -= paid;
    debt_ -= paid;
  }
  // A step is over whose cost is in doubt.
  void doubt(bool asked) { doubted_ += asked; }
  // The gain that probe drafts would have had. So a batch that is behind comes back.
  void settle_probe_draft(double gain) {
    if (is_behind()) steps_ = std::min(0.0, steps_ + gain);
  }

 private:
  static constexpr double kStart = 1.5;
  static constexpr double kMax = 8;   // past gains do not pay for a long loss
  static constexpr double kMin = -2;  // a wrong estimate must not stop drafting for a thousand steps
  double steps_ = kStart;
  double debt_ = 0;  // for prefills, not yet deducted
  int32_t doubted_ = 0;
};

}  // namespace outrider
