// The results of a study for programs: CSV and JSON.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lab/study/summary.h"

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
                               {"tokens_per_pass", &RunFigures::tokens_per_pass},
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
                               {"verify_predicted_over_measured", &RunFigures::verify_predicted}};

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
                     {"runs", std::move(runs)}});
  }
  return {{"study", summary.study.name},
          {"repeats", summary.study.repeats},
          {"axes", summary.study.axes},
          {"cells", std::move(cells)}};
}

}  // namespace outrider
