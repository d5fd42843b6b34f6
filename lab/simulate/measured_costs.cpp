#include "lab/simulate/measured_costs.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "lab/simulate/fit.h"

namespace outrider {
namespace {

// The fit covers the last passes, the run's time all passes. So the slopes come from the fit, and the level
// from the means.
void use_means(const nlohmann::json& cost, JobOptions& options) {
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
    if (options.draft.block_rows == 0) options.draft.base = cost[at].value("ms_per_token", 0.0) * 1e-3;
    options.draft_link.delay_s = cost[at].value("exchange_ms", 0.0) * 1e-3 / 2;
  }
}

MeasuredCosts of_report(const std::string& path, const nlohmann::json& cost) {
  const auto seconds = [&](const char* key) { return cost.value(key, 0.0) * 1e-3; };
  MeasuredCosts out;
  JobOptions& options = out.job;
  options.target = {.base = seconds("verify_base_ms"),
                    .per_row = seconds("verify_ms_per_row"),
                    .per_context = seconds("verify_ms_per_1000_context_tokens") / 1000};
  options.draft = {.base = seconds("draft_ms_per_token"), .per_row = seconds("draft_ms_per_further_token")};
  if (cost.contains("draft_ms_per_block"))
    options.draft = {.base = seconds("draft_ms_per_block"),
                     .per_row = seconds("draft_ms_per_further_token") / kDefaultGammaMax,
                     .block_rows = kDefaultGammaMax};
  options.draft_link.delay_s = seconds("exchange_ms") / 2;
  use_means(cost, options);
  const auto source = [&](const char* figure, std::string value) {
    out.sources.push_back({figure, std::move(value), CostSource::Kind::kFitted, path});
  };
  source("target pass", fmt::format("{:.4g} ms, {:.3g} ms for each row", options.target.base * 1e3,
                                    options.target.per_row * 1e3));
  source("draft pass", fmt::format("{:.4g} ms, {:.3g} ms for each row", options.draft.base * 1e3,
                                   options.draft.per_row * 1e3));
  source("draft links", fmt::format("{:.4g} ms one way", options.draft_link.delay_s * 1e3));
  return out;
}

// As fit.cpp writes it.
MeasuredCosts of_fit(const nlohmann::json& file) {
  MeasuredCosts out;
  const auto pass = [&](const char* name) {
    const nlohmann::json part = file.value(name, nlohmann::json::object());
    return ForwardCost{.base = part.value("base_ms", 0.0) * 1e-3,
                       .per_row = part.value("per_row_ms", 0.0) * 1e-3,
                       .per_context = part.value("per_1000_context_ms", 0.0) * 1e-6};
  };
  out.job.target = pass("target");
  out.job.draft = pass("draft");
  const nlohmann::json link = file.value("link", nlohmann::json::object());
  out.job.draft_link.delay_s = link.value("delay_ms", 0.0) * 1e-3;
  out.job.draft_link.bytes_per_second = link.value("gbit", 0.0) * 1e9 / 8;
  for (const nlohmann::json& s : file.value("sources", nlohmann::json::array())) {
    CostSource source{s.value("figure", ""), s.value("value", ""), CostSource::Kind::kAssumption,
                      s.value("from", "")};
    for (const auto kind : {CostSource::Kind::kFitted, CostSource::Kind::kDataSheet, CostSource::Kind::kFlag})
      if (s.value("source", "") == name_of(kind)) source.kind = kind;
    out.sources.push_back(std::move(source));
  }
  return out;
}

// As `simulate fit` of the file alone.
Result<MeasuredCosts> of_bench(const std::string& path) {
  Timings timings;
  RETURN_IF_ERROR(read_timings(path, "", "", timings).in("--costs"));
  auto fit = fit_costs(timings);
  if (!fit.ok()) return fit.status().in("--costs");
  nlohmann::json fitted;
  fill_json(*fit, fitted);
  return of_fit(fitted);
}

}  // namespace

Result<MeasuredCosts> measured_costs(const std::string& path) {
  std::ifstream file(path);
  if (!file) return not_found(fmt::format("--costs {}: cannot be opened", path));
  const auto report = nlohmann::json::parse(file, nullptr, false);
  const auto pointer = nlohmann::json::json_pointer("/metrics/cost_model");
  const bool is_bench = report.is_object() && report.contains("verify_curve");
  if (report.is_discarded() || !report.is_object() ||
      (!is_bench && !report.contains("outrider_costs") && !report.contains(pointer)))
    return malformed(fmt::format(
        "--costs {}: is no report of `generate --report`, of `bench --report` or of `simulate fit`", path));
  if (is_bench) return of_bench(path);
  try {
    return report.contains("outrider_costs") ? of_fit(report) : of_report(path, report[pointer]);
  } catch (const nlohmann::json::exception&) {
    return malformed(fmt::format("--costs {}: a figure of it is no number", path));
  }
}

}  // namespace outrider
