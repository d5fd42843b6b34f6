// Confidence stopping whose threshold is steered towards a target share of accepted draft tokens
// (Draft & Verify, Zhang et al. 2023).
#pragma once

#include "coordinator/gamma/plain_guard.h"

namespace outrider {

struct ThresholdOptions {
  double start = 0.6, target = 0.9;
  double rate_decay = 0.5, threshold_decay = 0.9, step = 0.01;
  double low = 0.05, high = 0.95;
  int32_t max = kDefaultGammaMax;
  bool guard = true;
};

class ThresholdGamma : public GammaPolicy {
 public:
  explicit ThresholdGamma(const ThresholdOptions& options)
      : options_(options), threshold_(options.start), rate_(options.target), guard_(options.guard) {}
  int32_t next(const GammaContext& context) override { return guard_.apply(options_.max, context); }
  void update(const RoundOutcome& outcome) override;
  StopRule stop_rule() const override;
  double threshold() const { return threshold_; }

 private:
  ThresholdOptions options_;
  double threshold_, rate_;
  PlainGuard guard_;
};

}  // namespace outrider
