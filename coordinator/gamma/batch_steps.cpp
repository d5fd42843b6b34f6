#include "coordinator/gamma/batch_steps.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/parse_number.h"
#include "base/shortened.h"

namespace outrider {

std::optional<int32_t> read_step_number(std::string_view text) {
  const auto value = parse_number<int32_t>(text);
  return value && *value >= 0 && *value <= 1024 ? value : std::nullopt;
}

Result<std::vector<BatchStep>> read_batch_steps(const GammaArguments& arguments, std::string_view policy,
                                                std::string_view form,
                                                std::vector<int32_t> (*lengths_of)(std::string_view)) {
  std::vector<BatchStep> steps;
  for (std::string_view text = arguments.find("steps")->second; !text.empty();) {
    const std::string_view item = text.substr(0, text.find('/'));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const size_t colon = item.find(':');
    const auto batch = read_step_number(item.substr(0, colon));
    std::vector<int32_t> lengths;
    if (colon != std::string_view::npos) lengths = lengths_of(item.substr(colon + 1));
    if (!batch || lengths.empty() || (!steps.empty() && *batch <= steps.back().batch))
      return invalid_argument(
          fmt::format("gamma policy '{}': steps={}: write {}", policy, shortened(item), form));
    steps.push_back({*batch, std::move(lengths)});
  }
  if (steps.empty()) return invalid_argument(fmt::format("gamma policy '{}': steps is empty", policy));
  return steps;
}

}  // namespace outrider
