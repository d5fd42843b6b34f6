// Policies that end a draft when the drafter is in doubt. The rule travels in Propose and is evaluated in
// heads/stop_rule.h; this file only sets the maximal length.
#include "coordinator/gamma/plain_guard.h"
#include "coordinator/gamma/policies.h"

namespace outrider {
namespace {

class StoppingGamma : public GammaPolicy {
 public:
  StoppingGamma(StopRule rule, int32_t max, bool guard) : rule_(rule), max_(max), guard_(guard) {}
  int32_t next(const GammaContext& context) override { return guard_.apply(max_, context); }
  void update(const RoundOutcome& outcome) override { guard_.update(outcome); }
  StopRule stop_rule() const override { return guard_.off() ? StopRule{} : rule_; }

 private:
  StopRule rule_;
  int32_t max_;
  PlainGuard guard_;
};

Result<GammaPolicyFactory> stopping_gamma(const GammaArguments& arguments, StopKind kind) {
  ASSIGN_OR_RETURN(const int32_t max, gamma_integer(arguments, "max", 1, 1024));
  ASSIGN_OR_RETURN(const int32_t guard, gamma_integer(arguments, "guard", 0, 1));
  ASSIGN_OR_RETURN(const double threshold, gamma_number(arguments, "threshold", 0, 100));
  StopRule rule{.kind = kind, .threshold = static_cast<float>(threshold)};
  if (kind != StopKind::kConfidence) {
    ASSIGN_OR_RETURN(const double scale, gamma_number(arguments, "scale", 0, 100));
    rule.scale = static_cast<float>(scale);
  }
  return GammaPolicyFactory(
      [rule, max, guard] { return std::make_unique<StoppingGamma>(rule, max, guard == 1); });
}

}  // namespace

Result<GammaPolicyFactory> confidence_gamma_from(const GammaArguments& arguments) {
  return stopping_gamma(arguments, StopKind::kConfidence);
}
Result<GammaPolicyFactory> svip_gamma_from(const GammaArguments& arguments) {
  return stopping_gamma(arguments, StopKind::kSvip);
}
Result<GammaPolicyFactory> adaedl_gamma_from(const GammaArguments& arguments) {
  return stopping_gamma(arguments, StopKind::kAdaEdl);
}

}  // namespace outrider
