#include "coordinator/gamma/threshold.h"

#include "coordinator/gamma/policies.h"

namespace outrider {

void ThresholdGamma::update(const RoundOutcome& outcome) {
  const bool steers = !guard_.off();  // probes are not cut by the threshold, so they say nothing about it
  guard_.update(outcome);
  if (outcome.drafted == 0 || !steers) return;
  const double share = static_cast<double>(outcome.accepted) / outcome.drafted;
  rate_ = options_.rate_decay * rate_ + (1 - options_.rate_decay) * share;
  const double moved = threshold_ + (rate_ <= options_.target ? options_.step : -options_.step);
  threshold_ = std::clamp(options_.threshold_decay * threshold_ + (1 - options_.threshold_decay) * moved,
                          options_.low, options_.high);
}

StopRule ThresholdGamma::stop_rule() const {
  if (guard_.off()) return {};
  return {.kind = StopKind::kConfidence, .threshold = static_cast<float>(threshold_)};
}

Result<GammaPolicyFactory> threshold_gamma_from(const GammaArguments& arguments) {
  ThresholdOptions options;
  ASSIGN_OR_RETURN(options.max, gamma_integer(arguments, "max", 1, 1024));
  ASSIGN_OR_RETURN(options.target, gamma_number(arguments, "target", 0.01, 1));
  ASSIGN_OR_RETURN(options.start, gamma_number(arguments, "start", options.low, options.high));
  ASSIGN_OR_RETURN(const int32_t guard, gamma_integer(arguments, "guard", 0, 1));
  options.guard = guard == 1;
  return GammaPolicyFactory([options] { return std::make_unique<ThresholdGamma>(options); });
}

}  // namespace outrider
