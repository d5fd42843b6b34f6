#include "lab/simulate/measured_costs.h"

#include <fstream>
#include <nlohmann/json.hpp>

namespace outrider {
namespace {

// The fit is of the last passes, the run's time is of all of them: the fit tells the slopes, the means the
// level.
void use_means(const nlohmann::json& cost, GroupOptions& options) {
  if (const auto at = nlohmann::json::json_pointer("/mean/verify"); cost.contains(at)) {
    const double rows = cost[at].value("rows", 0.0), context = cost[at].value("context_tokens", 0.0);
    const double slopes = options.target.per_row * rows + options.target.per_context * context;
    const double mean = cost[at].value("ms", 0.0) * 1e-3;
    if (slopes < mean)
      options.target.base = mean - slopes;
    else  // a fit of passes of one size may be all slope
      options.target = {.base = mean};
  }
  if (const auto at = nlohmann::json::json_pointer("/mean/draft"); cost.contains(at)) {
    options.draft.base = cost[at].value("ms_per_token", 0.0) * 1e-3;
    options.draft_link.delay_s = cost[at].value("exchange_ms", 0.0) * 1e-3 / 2;
  }
}

}  // namespace

Result<GroupOptions> costs_from_report(const std::string& path) {
  std::ifstream file(path);
  if (!file) return not_found(fmt::format("--costs {}: cannot be opened", path));
  const auto report = nlohmann::json::parse(file, nullptr, false);
  const auto pointer = nlohmann::json::json_pointer("/metrics/cost_model");
  if (report.is_discarded() || !report.contains(pointer))
    return malformed(fmt::format("--costs {}: holds no metrics.cost_model; write it with --report", path));
  const auto& cost = report[pointer];
  const auto seconds = [&](const char* key) { return cost.value(key, 0.0) * 1e-3; };
  GroupOptions options;
  options.target = {.base = seconds("verify_base_ms"),
                    .per_row = seconds("verify_ms_per_row"),
                    .per_context = seconds("verify_ms_per_1000_context_tokens") / 1000};
  options.draft = {.base = seconds("draft_ms_per_token"), .per_row = seconds("draft_ms_per_further_token")};
  options.draft_link.delay_s = seconds("exchange_ms") / 2;
  use_means(cost, options);
  return options;
}

}  // namespace outrider
