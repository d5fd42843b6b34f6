#include <algorithm>

#include "coordinator/gamma/plain_guard.h"
#include "coordinator/gamma/policies.h"

namespace outrider {
namespace {

class HeuristicGamma : public GammaPolicy {
 public:
  explicit HeuristicGamma(const HeuristicOptions& options)
      : gamma_(options.start), options_(options), guard_(options.guard) {}
  int32_t next(const GammaContext& context) override { return guard_.apply(gamma_, context); }
  void update(const RoundOutcome& outcome) override {
    guard_.update(outcome);
    if (outcome.drafted == 0) return;  // nothing was tested
    gamma_ = outcome.accepted == outcome.drafted ? std::min(options_.max, gamma_ + 2)
                                                 : std::max(options_.min, gamma_ - 1);
  }

 private:
  int32_t gamma_;
  HeuristicOptions options_;
  PlainGuard guard_;
};

}  // namespace

std::unique_ptr<GammaPolicy> make_heuristic_gamma(const HeuristicOptions& options) {
  return std::make_unique<HeuristicGamma>(options);
}

Result<GammaPolicyFactory> heuristic_gamma_from(const GammaArguments& arguments) {
  HeuristicOptions options;
  ASSIGN_OR_RETURN(options.max, gamma_integer(arguments, "max", 1, 1024));
  ASSIGN_OR_RETURN(options.min, gamma_integer(arguments, "min", 1, options.max));
  ASSIGN_OR_RETURN(options.start, gamma_integer(arguments, "start", options.min, options.max));
  ASSIGN_OR_RETURN(const int32_t guard, gamma_integer(arguments, "guard", 0, 1));
  options.guard = guard == 1;
  return GammaPolicyFactory([options] { return make_heuristic_gamma(options); });
}

}  // namespace outrider
