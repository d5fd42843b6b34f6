#include <algorithm>

#include "coordinator/gamma/policies.h"

namespace outrider {
namespace {

// Steady drift is zero where 2 alpha^g = 1 - alpha^g, so it settles near alpha^g = 1/3, whatever drafting
// costs.
class HeuristicGamma : public GammaPolicy {
 public:
  HeuristicGamma(int32_t start, int32_t low, int32_t high) : gamma_(start), low_(low), high_(high) {}
  int32_t next(const GammaContext&) override { return gamma_; }
  void update(const RoundOutcome& outcome) override {
    if (outcome.drafted == 0) return;  // nothing was tested
    gamma_ = outcome.accepted == outcome.drafted ? std::min(high_, gamma_ + 2) : std::max(low_, gamma_ - 1);
  }

 private:
  int32_t gamma_, low_, high_;
};

}  // namespace

std::unique_ptr<GammaPolicy> make_heuristic_gamma(int32_t start, int32_t low, int32_t high) {
  return std::make_unique<HeuristicGamma>(start, low, high);
}

Result<GammaPolicyFactory> heuristic_gamma_from(const GammaArguments& arguments) {
  ASSIGN_OR_RETURN(const int32_t high, gamma_integer(arguments, "max", 1, 1024));
  ASSIGN_OR_RETURN(const int32_t low, gamma_integer(arguments, "min", 1, high));
  ASSIGN_OR_RETURN(const int32_t start, gamma_integer(arguments, "start", low, high));
  return GammaPolicyFactory([=] { return make_heuristic_gamma(start, low, high); });
}

}  // namespace outrider
