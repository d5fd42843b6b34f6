#include "coordinator/gamma/policies.h"

namespace outrider {
namespace {

class FixedGamma : public GammaPolicy {
 public:
  explicit FixedGamma(int32_t gamma) : gamma_(gamma) {}
  int32_t next(const GammaContext&) override { return gamma_; }
  void update(const RoundOutcome&) override {}

 private:
  int32_t gamma_;
};

}  // namespace

std::unique_ptr<GammaPolicy> make_fixed_gamma(int32_t gamma) { return std::make_unique<FixedGamma>(gamma); }

Result<GammaPolicyFactory> fixed_gamma_from(const GammaArguments& arguments) {
  ASSIGN_OR_RETURN(const int32_t gamma, gamma_integer(arguments, "gamma", 0, 1024));
  return GammaPolicyFactory([gamma] { return make_fixed_gamma(gamma); });
}

}  // namespace outrider
