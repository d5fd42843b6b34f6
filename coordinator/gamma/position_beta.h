// Acceptance by position: one Beta posterior for each place in the draft.
#pragma once

#include <vector>

#include "coordinator/gamma/acceptance.h"
#include "coordinator/gamma/probe_budget.h"

namespace outrider {

struct PositionBetaOptions {
  int32_t max = kDefaultGammaMax;
  double prior_accepted = 2.8, prior_rejected = 1.2;
  double decay = 0.98;
  double explore = 1.0 / 32;  // chance of one token more
  double switch_gain = 0.02;
};

class PositionBetas {
 public:
  explicit PositionBetas(const PositionBetaOptions& options);
  void update(int32_t drafted, int32_t accepted);  // positions 1..min(drafted, accepted + 1) were tested
  double mean(int32_t position) const;             // posterior of draft token position + 1
  // tokens[g] = 1 + sum over j <= g of the product of means. Positions never tested inherit the mean of the
  // last tested one.
  void expected_tokens(std::span<double> tokens) const;

 private:
  struct Beta {
    double accepted, rejected;
  };
  std::vector<Beta> betas_;
  double decay_;
  int32_t tested_ = 0;  // positions that ever were
};

class PositionBetaGamma : public GammaPolicy {
 public:
  explicit PositionBetaGamma(const PositionBetaOptions& options);
  int32_t next(const GammaContext& context) override;
  void update(const RoundOutcome& outcome) override;

 private:
  PositionBetaOptions options_;
  PositionBetas betas_;
  ProbeBudget probes_;
  std::vector<double> tokens_;  // scratch
  int32_t gamma_ = -1;
  int32_t decisions_ = 0;
};

}  // namespace outrider
