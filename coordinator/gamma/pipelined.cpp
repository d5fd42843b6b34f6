// Lengths for drafting ahead, as in PEARL: drafting a block takes as long as verifying one, and after a
// rejection the first token is sent alone, so that the target can start. Where drafting waits for verdicts,
// or acceptance is too low for drafting ahead, it behaves like the ewma policy.
#include <cmath>

#include "coordinator/gamma/closed_forms.h"
#include "coordinator/gamma/ewma.h"
#include "coordinator/gamma/policies.h"

namespace outrider {
namespace {

class PipelinedGamma : public GammaPolicy {
 public:
  PipelinedGamma(int32_t max, std::shared_ptr<EwmaBatches> batches)
      : max_(max), lockstep_({.max = max}, std::move(batches)) {}

  int32_t next(const GammaContext& context) override {
    const int32_t fallback = lockstep_.next(context);
    if (!context.ahead || lockstep_.probe_draft() > 0 || !pays(context)) return fallback;
    return std::min(rejected_ ? 1 : block_, context.limit);
  }

  void update(const RoundOutcome& outcome) override {
    lockstep_.update(outcome);
    if (outcome.drafted > 0) rejected_ = outcome.accepted < outcome.drafted;
  }

  int32_t probe_draft() const override { return lockstep_.probe_draft(); }
  void observe_probe_draft(int32_t drafted, int32_t accepted) override {
    lockstep_.observe_probe_draft(drafted, accepted);
  }

 private:
  // Compares drafting ahead, with the carry test, to lockstep, each at its best length.
  bool pays(const GammaContext& context) {
    const CostModel& cost = cost_of(context.cost);
    const double plain = cost.round_seconds(0, context.batch_size, context.context_length);
    const double draft = cost.draft_seconds(1) / plain;
    const double delay = cost.exchange_seconds() / plain / 2;
    block_ = std::clamp(static_cast<int32_t>(std::lround(1 / std::max(draft, 1e-3))), 1, max_);
    const double alpha = lockstep_.acceptance();
    const int32_t length = std::max(1, lockstep_.chosen());
    const double ahead = ahead_carry_speedup(alpha, block_, draft * block_, 1, delay);
    return ahead > lockstep_speedup(alpha, length, draft, delay, 0) && ahead > 1;
  }

  int32_t max_;
  EwmaGamma lockstep_;
  int32_t block_ = 1;
  bool rejected_ = true;
};

}  // namespace

Result<GammaPolicyFactory> pipelined_gamma_from(const GammaArguments& arguments) {
  ASSIGN_OR_RETURN(const int32_t max, gamma_integer(arguments, "max", 1, 1024));
  const auto batches = std::make_shared<EwmaBatches>(EwmaBatch({.max = max}));
  return GammaPolicyFactory([max, batches] { return std::make_unique<PipelinedGamma>(max, batches); });
}

}  // namespace outrider
