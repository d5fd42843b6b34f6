// The drafting time of one draft worker by the number of its sequences, measured at every worker. CostModel
// knows the time of all workers of the present pool together; this tells what another number of workers
// would take. Seconds; plain values, no clock.
#pragma once

#include <algorithm>
#include <cstdint>

#include "coordinator/costs/draft_phases.h"

namespace outrider {

class WorkerCost {
 public:
  // A worker drafted in one step of a target group: `longest` tokens in its longest draft, `total` in all. A
  // step of one draft tells the time of a token; a step of several tells what the further ones cost.
  void observe(int32_t longest_draft, int32_t total, double busy) {
    if (longest_draft <= 0 || busy < 0) return;
    const auto [longest, further] = DraftUnits(longest_draft, total, of_blocks_);
    if (further > 0 && alone_ > 0 && step_ > 0) {
      const double all = watch_.believed(busy, step_ * (longest + further));
      average(&share_, (all / step_ - longest) / further, ++together_);
      share_ = std::clamp(share_, 0.0, 1.0);
      return;
    }
    const double tokens = longest + share_ * further;
    const double believed = alone_ + unsplit_ > 0 ? watch_.believed(busy, step_ * tokens) : busy;
    if (further == 0 && alone_ == 0) unsplit_ = 0;  // the first step of one draft: the usual case from now on
    average(&step_, believed / tokens, further == 0 ? ++alone_ : ++unsplit_);
  }
  // The share that a worker measured before it joined.
  void expect(const DraftCost& cost) {
    if (together_ == 0 && cost.per_step > 0) share_ = std::clamp(cost.per_further / cost.per_step, 0.0, 1.0);
  }
  // Whether a pass makes a whole draft (DraftCost::of_blocks); before the first measurement.
  void set_blocks(bool of_blocks) { of_blocks_ = of_blocks; }
  bool is_measured() const { return alone_ + unsplit_ > 0; }
  DraftCost cost() const {
    return {.per_step = step_, .per_further = share_ * step_, .of_blocks = of_blocks_};
  }

 private:
  static constexpr double kNewest = 1.0 / 16;
  static void average(double* mean, double value, int64_t count) {
    *mean += std::max(kNewest, 1.0 / static_cast<double>(count)) * (value - *mean);
  }

  HeldUp watch_{2, 8};  // as DraftPhases
  bool of_blocks_ = false;
  double step_ = 0;
  double share_ = 1;  // per_further / per_step; until it is known, sequences are served in turn
  int64_t alone_ = 0, together_ = 0, unsplit_ = 0;  // steps; `unsplit_` have the assumed share
};

}  // namespace outrider
