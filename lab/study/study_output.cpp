// The results of a study for programs: CSV and JSON.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lab/study/summary.h"
#include "requests/provenance.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + "\"";
}

struct Column {
  const char* name;
  double RunFigures::*figure;
};
constexpr Column kColumns[] = {{"seconds", &RunFigures::seconds},
                               {"tokens_per_second", &RunFigures::tokens_per_second},
                               {"plain_tokens_per_second", &RunFigures::plain_tokens_per_second},
                               {"speedup", &RunFigures::speedup},
                               {"predicted_speedup", &RunFigures::predicted_speedup},
                               {"acceptance", &RunFigures::acceptance},
                               {"accepted_tokens", &RunFigures::accepted_tokens},
                               {"tested_tokens", &RunFigures::tested_tokens},
                               {"drafted_tokens", &RunFigures::drafted_tokens},
                               {"tokens_per_round", &RunFigures::tokens_per_round},
                               {"mean_gamma", &RunFigures::mean_gamma},
                               {"bytes_per_accepted_token", &RunFigures::bytes_per_accepted},
                               {"ttft_p50_ms", &RunFigures::ttft_p50_ms},
                               {"itl_p50_ms", &RunFigures::itl_p50_ms},
                               {"itl_p95_ms", &RunFigures::itl_p95_ms},
                               {"itl_p99_ms", &RunFigures::itl_p99_ms},
                               {"itl_coefficient_of_variation", &RunFigures::itl_variation},
                               {"pause_p50_ms", &RunFigures::pause_p50_ms},
                               {"pause_p99_ms", &RunFigures::pause_p99_ms},
                               {"burst_p99_tokens", &RunFigures::burst_p99},
                               {"target_idle_share", &RunFigures::target_idle},
                               {"draft_idle_share", &RunFigures::draft_idle},
                               {"outcome_hit_rate", &RunFigures::hit_rate},
                               {"verify_predicted_over_measured", &RunFigures::verify_predicted},
                               {"other_cores", &RunFigures::other_cores},
                               {"steal_share", &RunFigures::steal_share},
                               {"read_bandwidth_bytes_per_s", &RunFigures::read_bandwidth}};

Json ratio_json(const Ratio& r) {
  return {{"value", r.value},
          {"interval", r.has_interval() ? Json::array({r.low, r.high}) : Json()},
          {"repeats", r.samples}};
}

Json regret_json(const std::optional<Regret>& regret) {
  if (!regret) return nullptr;
  return {{"value", regret->value},
          {"interval", regret->has_interval() ? Json::array({regret->low, regret->high}) : Json()}};
}

Json share_json(const Share& share) {
  return {{"rate", share.value()}, {"accepted_tokens", share.count}, {"of_tokens", share.of}};
}

// Over the repeats of a cell.
Json summary_json(const CellSummary& cell) {
  const Spread rate = cell.spread(&RunFigures::tokens_per_second);
  return {{"tokens_per_second", {{"median", rate.median}, {"low", rate.low}, {"high", rate.high}}},
          {"speedup", ratio_json(cell.speedup())},
          {"acceptance", share_json(cell.acceptance())},
          {"draft_utilisation", share_json(cell.utilisation())},
          {"position_acceptance", cell.position_acceptance()},
          {"gamma_histogram", cell.gamma_histogram()}};
}

Json groups_json(const StudySummary& summary) {
  Json groups = Json::array();
  for (const CellGroup& group : summary.groups()) {
    Json cells = Json::array();
    for (const CellSummary* cell : group.cells)
      cells.push_back({{"cell", cell->cell.id},
                       {"of_best_fixed", ratio_json(group.of_best_fixed(*cell))},
                       {"regret", regret_json(group.regret(*cell))}});
    const CellSummary* best = group.best_fixed();
    groups.push_back({{"name", group.name},
                      {"best_fixed", best ? Json(best->cell.id) : Json()},
                      {"cells", std::move(cells)}});
  }
  return groups;
}

}  // namespace

std::string study_csv(const StudySummary& summary) {
  std::string out = "cell,repeat,status";
  for (const std::string& axis : summary.study.axes) out += "," + axis;
  for (const Column& column : kColumns) out += fmt::format(",{}", column.name);
  out += ",identical_output,synthetic,error\n";
  for (const CellSummary& cell : summary.cells)
    for (const RunFigures& run : cell.runs) {
      out += fmt::format("{},{},{}", cell.cell.id, run.repeat, run.ok ? "ok" : "failed");
      for (const std::string& axis : summary.study.axes) {
        const auto value = cell.cell.values.find(axis);
        out += fmt::format(",{}", value == cell.cell.values.end() ? "" : quoted(value->second));
      }
      for (const Column& column : kColumns) out += fmt::format(",{:.6g}", run.*column.figure);
      out += fmt::format(",{},{},{}\n", run.identical, run.synthetic ? "yes" : "no", quoted(run.error));
    }
  return out;
}

Json study_json(const StudySummary& summary) {
  Json cells = Json::array();
  for (const CellSummary& cell : summary.cells) {
    Json runs = Json::array();
    for (const RunFigures& run : cell.runs) {
      Json figures{{"repeat", run.repeat}, {"status", run.ok ? "ok" : "failed"}};
      if (!run.ok) figures["error"] = run.error;
      figures["by_category"] = run.by_category;
      figures["commit"] = run.commit;
      figures["host"] = run.host;
      for (const Column& column : kColumns) figures[column.name] = run.*column.figure;
      figures["identical_output"] = run.identical;
      figures["synthetic"] = run.synthetic;
      figures["position_acceptance"] = run.position_acceptance;
      figures["gamma_histogram"] = run.gamma_histogram;
      runs.push_back(std::move(figures));
    }
    cells.push_back({{"cell", cell.cell.id},
                     {"values", cell.cell.values},
                     {"arguments", cell.cell.arguments},
                     {"summary", summary_json(cell)},
                     {"runs", std::move(runs)}});
  }
  return {{"provenance", provenance({{"intervals", BootstrapOptions().seed}})},
          {"conclusions", summary.conclusions},
          {"warnings", summary.warnings},
          {"study", summary.study.name},
          {"repeats", summary.study.repeats},
          {"axes", summary.study.axes},
          {"groups", groups_json(summary)},
          {"cells", std::move(cells)}};
}

}  // namespace outrider
