// The adaptive verification of vLLM 0.33: every draft is made, and the target verifies the tokens that bring
// the most expected tokens per second of the batch. vLLM sorts all tokens of a step by survival and finds the
// best number in its tables of costs, with the chances of the step before. Our drafter ends its draft itself,
// so the number becomes a price: a token is sent while its survival exceeds the batch's tokens per second
// times the cost of a row. With the same costs both send the same tokens, because the best number is where
// the next survival falls below that price. Every step drafts, also where plain decoding is faster.
#include <algorithm>
#include <memory>
#include <utility>

#include "comm/messages/draft_forms.h"
#include "coordinator/gamma/acceptance.h"
#include "coordinator/gamma/by_group.h"
#include "coordinator/gamma/policies.h"
#include "coordinator/gamma/shared_slope_fit.h"

namespace outrider {
namespace {

constexpr int32_t kPricedRows = 4;  // rows that the price of one is averaged over: kernels have steps

// The sequences of a factory in a target group.
class VllmBatch {
 public:
  explicit VllmBatch(size_t places) : fit_(places) {}

  // Before the first decision of a step: the step before is over.
  void settle(const CostModel& cost) {
    if (step_.rounds == 0) return;
    const Step step = std::exchange(step_, {});
    fit_.step();
    const int32_t rows = step.rounds + step.drafted;
    const double verify = cost.verify_seconds(rows, step.context);
    const double further = cost.verify_seconds(rows + kPricedRows, step.context) - verify;
    const double seconds = verify + cost.draft_phase_seconds(step.longest, step.drafted);
    price_ = step.tokens / seconds * std::max(0.0, further / kPricedRows);
  }

  void learn(const RoundOutcome& outcome, int32_t context) {
    ++step_.rounds;
    step_.context += context;
    step_.drafted += outcome.drafted;
    step_.longest = std::max(step_.longest, outcome.drafted);
    step_.tokens += 1;
    double survival = 1;
    for (size_t place = 0; place < outcome.margins.size(); ++place) {
      const auto margin = std::clamp(static_cast<double>(outcome.margins[place]), 0.0, double{kMaxMargin});
      survival *= fit_.chance(place, margin);
      step_.tokens += survival;
      const auto accepted = static_cast<size_t>(outcome.accepted);
      if (place <= accepted) fit_.observe(place, margin, place < accepted);
    }
  }

  std::vector<PlaceRule> places(int32_t count) const {
    std::vector<PlaceRule> out;
    for (int32_t place = 0; place < count; ++place)
      out.push_back({.slope = static_cast<float>(fit_.slope()),
                     .offset = static_cast<float>(fit_.offset(static_cast<size_t>(place))),
                     .least_sent = static_cast<float>(price_),
                     .least_extended = 0});
    return out;
  }

 private:
  SharedSlopeFit fit_;
  double price_ = 0;  // of a row, in expected tokens; at first everything is sent
  struct Step {
    int32_t rounds = 0, drafted = 0, longest = 0;
    int64_t context = 0;
    double tokens = 0;  // expected
  } step_;
};

class VllmGamma : public GammaPolicy {
 public:
  VllmGamma(int32_t max, std::shared_ptr<ByGroup<VllmBatch>> batches)
      : max_(max), batches_(std::move(batches)), batch_(&batches_->of(0)) {}

  int32_t next(const GammaContext& context) override {
    batch_ = &batches_->of(context.group);
    batch_->settle(cost_of(context.cost));
    context_ = context.context_length;
    const int32_t length = std::min(max_, context.limit);
    rule_ = {.kind = StopKind::kChances, .places = batch_->places(length)};
    return length;
  }
  void update(const RoundOutcome& outcome) override { batch_->learn(outcome, context_); }
  StopRule stop_rule() const override { return rule_; }

 private:
  const int32_t max_;
  const std::shared_ptr<ByGroup<VllmBatch>> batches_;
  VllmBatch* batch_;  // of the group that it runs in
  int32_t context_ = 0;
  StopRule rule_;
};

}  // namespace

Result<GammaPolicyFactory> vllm_gamma_from(const GammaArguments& arguments) {
  ASSIGN_OR_RETURN(const int32_t max, gamma_integer(arguments, "max", 1, 1024));
  const auto batches = std::make_shared<ByGroup<VllmBatch>>(VllmBatch(static_cast<size_t>(max)));
  return GammaPolicyFactory([max, batches] { return std::make_unique<VllmGamma>(max, batches); });
}

}  // namespace outrider
