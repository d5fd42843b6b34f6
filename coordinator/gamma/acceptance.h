// How often draft tokens are accepted, estimated without bias, and the draft length that pays best for it.
// The blocks most policies are made of.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "coordinator/gamma/gamma_policy.h"

namespace outrider {

// Tokens of a round of gamma drafts, each accepted with probability alpha: sum of alpha^j, j = 0..gamma.
double expected_tokens(double alpha, int32_t gamma);

// A ratio of decayed sums, accepted over tested. Never an average of per-round ratios: E[n / tested] is 0.635
// for a true 0.8 at gamma 5.
class AcceptanceEwma {
 public:
  // For a sequence alone: a usual pair of models as prior, worth ten tests, and a memory of ten rounds.
  AcceptanceEwma() : AcceptanceEwma(0.7, 10, 0.9) {}
  AcceptanceEwma(double prior_mean, double prior_tests, double decay)
      : accepted_(prior_mean * prior_tests), tested_(prior_tests), decay_(decay) {}
  void update(int32_t drafted, int32_t accepted);
  void forget(double share);  // keeps the mean, drops this share of the evidence
  double tested() const { return tested_; }
  double mean() const { return std::clamp(accepted_ / tested_, 0.01, 0.99); }

 private:
  double accepted_, tested_, decay_;
};

// rate(gamma) = tokens(gamma) / seconds(gamma); `tokens` needs [0, limit]. The smaller gamma wins within
// 1e-6.
struct GammaChoice {
  int32_t gamma = 0;
  double rate = 0;
};
double gamma_rate(double tokens, int32_t gamma, const GammaContext& context);
GammaChoice best_gamma(std::span<const double> tokens, const GammaContext& context);

// The context's cost model, or the prior where there is none.
const CostModel& cost_of(const CostModel* cost);

}  // namespace outrider
