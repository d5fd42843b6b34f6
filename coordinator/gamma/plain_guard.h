// Gamma 0 for policies that do not weigh costs themselves: when no draft length is predicted to beat plain
// decoding, their choice is overridden and only probes run.
#pragma once

#include "coordinator/gamma/acceptance.h"
#include "coordinator/gamma/probe_budget.h"

namespace outrider {

class PlainGuard {
 public:
  explicit PlainGuard(bool enabled = true) : enabled_(enabled) {}
  // `wanted`, or 0, or a probe.
  int32_t apply(int32_t wanted, const GammaContext& context);
  void update(const RoundOutcome& outcome);
  bool off() const { return off_; }

 private:
  bool enabled_;
  bool off_ = false;
  AcceptanceEwma acceptance_;
  ProbeBudget probes_;
};

}  // namespace outrider
