// A fixed schedule from batch size to gamma, with gamma 0 for large batches, as in engines whose users
// profile by hand.
#include "coordinator/gamma/batch_steps.h"

namespace outrider {
namespace {

class BatchTableGamma : public GammaPolicy {
 public:
  explicit BatchTableGamma(std::vector<BatchStep> steps) : steps_(std::move(steps)) {}
  int32_t next(const GammaContext& context) override {
    int32_t gamma = steps_.front().lengths.front();
    for (const BatchStep& step : steps_)
      if (step.batch <= context.batch_size) gamma = step.lengths.front();
    return gamma;
  }
  void update(const RoundOutcome&) override {}

 private:
  std::vector<BatchStep> steps_;
};

std::vector<int32_t> one_length(std::string_view text) {
  const std::optional<int32_t> length = read_step_number(text);
  return length ? std::vector{*length} : std::vector<int32_t>();
}

}  // namespace

Result<GammaPolicyFactory> table_gamma_from(const GammaArguments& arguments) {
  // "1:8/4:5/32:0"
  ASSIGN_OR_RETURN(std::vector<BatchStep> steps,
                   read_batch_steps(arguments, "table",
                                    "BATCH:GAMMA with growing batch sizes, e.g. 1:8/4:5/32:0", &one_length));
  return GammaPolicyFactory([steps = std::move(steps)] { return std::make_unique<BatchTableGamma>(steps); });
}

}  // namespace outrider
