// A fixed schedule from batch size to gamma, with gamma 0 for large batches, as in engines whose users
// profile by hand.

#include "base/parse_number.h"
#include "base/shortened.h"
#include "coordinator/gamma/policies.h"

namespace outrider {
namespace {

struct Step {
  int32_t batch = 0, gamma = 0;
};

class BatchTableGamma : public GammaPolicy {
 public:
  explicit BatchTableGamma(std::vector<Step> steps) : steps_(std::move(steps)) {}
  int32_t next(const GammaContext& context) override {
    int32_t gamma = steps_.front().gamma;
    for (const Step& step : steps_)
      if (step.batch <= context.batch_size) gamma = step.gamma;
    return gamma;
  }
  void update(const RoundOutcome&) override {}

 private:
  std::vector<Step> steps_;
};

std::optional<int32_t> read_integer(std::string_view text) {
  const auto value = parse_number<int32_t>(text);
  return value && *value >= 0 && *value <= 1024 ? value : std::nullopt;
}

// "1:8/4:5/32:0"
Result<std::vector<Step>> read_steps(std::string_view text) {
  std::vector<Step> steps;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find('/'));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const size_t colon = item.find(':');
    const auto batch = read_integer(item.substr(0, colon));
    const auto gamma = colon == std::string_view::npos ? std::nullopt : read_integer(item.substr(colon + 1));
    if (!batch || !gamma || (!steps.empty() && *batch <= steps.back().batch))
      return invalid_argument(fmt::format(
          "gamma policy 'table': steps={}: write BATCH:GAMMA with growing batch sizes, e.g. 1:8/4:5/32:0",
          shortened(item)));
    steps.push_back({*batch, *gamma});
  }
  if (steps.empty()) return invalid_argument("gamma policy 'table': steps is empty");
  return steps;
}

}  // namespace

Result<GammaPolicyFactory> table_gamma_from(const GammaArguments& arguments) {
  ASSIGN_OR_RETURN(std::vector<Step> steps, read_steps(arguments.find("steps")->second));
  return GammaPolicyFactory([steps = std::move(steps)] { return std::make_unique<BatchTableGamma>(steps); });
}

}  // namespace outrider
