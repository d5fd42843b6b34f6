// TurboSpec (2406.14066, third version): one draft length for the whole batch, that of the largest predicted
// goodput. With the moving average alpha of the acceptance of all sequences, and a batch of b:
//
//   goodput(k) = b (1 - alpha^(k+1)) / (1 - alpha) / (seconds of drafting k tokens for b, and of a pass of b
//   (k+1) rows)
//
// Seconds come from the cost model, which measures what TurboSpec profiles before it serves.
#include <memory>

#include "coordinator/gamma/acceptance.h"
#include "coordinator/gamma/by_group.h"
#include "coordinator/gamma/policies.h"
#include "coordinator/gamma/probe_budget.h"

namespace outrider {
namespace {

class TurboSpecGamma : public GammaPolicy {
 public:
  TurboSpecGamma(int32_t max, std::shared_ptr<ByGroup<AcceptanceEwma>> shared)
      : max_(max), shared_(std::move(shared)), acceptance_(&shared_->of(0)) {}

  int32_t next(const GammaContext& context) override {
    acceptance_ = &shared_->of(context.group);
    tokens_.clear();
    for (int32_t k = 0; k <= std::min(max_, context.limit); ++k)
      tokens_.push_back(context.batch_size * expected_tokens(acceptance_->mean(), k));
    gamma_ = best_gamma(tokens_, context).gamma;
    return gamma_ > 0 ? gamma_ : probes_.next(context);
  }
  void update(const RoundOutcome& outcome) override {
    if (gamma_ == 0) probes_.update(outcome);
    acceptance_->update(outcome.drafted, outcome.accepted);
  }

 private:
  const int32_t max_;
  const std::shared_ptr<ByGroup<AcceptanceEwma>> shared_;
  AcceptanceEwma* acceptance_;  // of the group that it runs in
  ProbeBudget probes_;
  int32_t gamma_ = 0;
  std::vector<double> tokens_;
};

}  // namespace

Result<GammaPolicyFactory> turbospec_gamma_from(const GammaArguments& arguments) {
  ASSIGN_OR_RETURN(const int32_t max, gamma_integer(arguments, "max", 1, 1024));
  ASSIGN_OR_RETURN(const double decay, gamma_number(arguments, "decay", 0.01, 0.999));
  const auto shared = std::make_shared<ByGroup<AcceptanceEwma>>(AcceptanceEwma(0.7, 10, decay));
  return GammaPolicyFactory([max, shared] { return std::make_unique<TurboSpecGamma>(max, shared); });
}

}  // namespace outrider
