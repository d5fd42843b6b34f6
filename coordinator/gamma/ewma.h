// The default policy (algorithms.md 5.3): decayed acceptance, measured costs, and the length that maximises
// tokens per second.
#pragma once

#include <memory>
#include <vector>

#include "coordinator/gamma/acceptance.h"
#include "coordinator/gamma/probe_budget.h"

namespace outrider {

struct EwmaOptions {
  int32_t max = kDefaultGammaMax;
  double decay = 0.9;
  double prior_mean = 0.7, prior_tests = 10;
  double switch_gain = 0.02;  // predicted, before the length changes
  int32_t zero_guard = 4;     // rounds in a row without an accepted token that halve gamma; 0: no guard
};

// What earlier sequences of the same pair taught; shared by the policies of one factory.
struct PairHistory {
  double accepted = 0, tested = 0;
  static constexpr double kDecay = 0.99;  // per round of any sequence
};

class EwmaGamma : public GammaPolicy {
 public:
  explicit EwmaGamma(const EwmaOptions& options, std::shared_ptr<PairHistory> history = nullptr);
  int32_t next(const GammaContext& context) override;
  void update(const RoundOutcome& outcome) override;

  double acceptance() const { return acceptance_.mean(); }
  int32_t chosen() const { return gamma_; }  // without probes

 private:
  void choose(const GammaContext& context);
  void watch_for_collapse(const RoundOutcome& outcome);

  EwmaOptions options_;
  std::shared_ptr<PairHistory> history_;  // may be null
  AcceptanceEwma acceptance_;
  ProbeBudget probes_;
  std::vector<double> tokens_;  // scratch
  int32_t gamma_ = -1;          // none chosen yet
  int32_t zeros_ = 0;           // rounds in a row without an accepted token
};

}  // namespace outrider
