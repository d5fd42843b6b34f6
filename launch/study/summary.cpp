#include "launch/study/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "coordinator/gamma/closed_forms.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

double number(const Json& from, const char* pointer) {
  const Json::json_pointer at(pointer);
  return from.contains(at) && from.at(at).is_number() ? from.at(at).get<double>() : 0;
}

std::vector<double> numbers(const Json& from, const char* pointer) {
  const Json::json_pointer at(pointer);
  std::vector<double> out;
  if (from.contains(at) && from.at(at).is_array())
    for (const Json& value : from.at(at)) out.push_back(value.is_number() ? value.get<double>() : 0);
  return out;
}

// Rounds of length 0 count: a policy that mostly stays off has a small mean.
double mean_length(const std::vector<double>& histogram) {
  double rounds = 0, tokens = 0;
  for (size_t gamma = 0; gamma < histogram.size(); ++gamma) {
    rounds += histogram[gamma];
    tokens += histogram[gamma] * static_cast<double>(gamma);
  }
  return rounds > 0 ? tokens / rounds : 0;
}

void read_comparison(const Json& comparison, RunFigures& run) {
  run.plain_tokens_per_second = number(comparison, "/plain_tokens_per_second");
  run.speedup = number(comparison, "/speedup");
  run.predicted_speedup = number(comparison, "/predicted_speedup");
  run.identical = comparison.value("identical_output", false) ? "yes" : "no";
}

void read_costs(const Json& cost, RunFigures& run) {
  run.row_ms = number(cost, "/verify_ms_per_row");
  run.plain_step_ms = number(cost, "/verify_base_ms") + run.row_ms;
  run.draft_ms = number(cost, "/draft_ms_per_token");
  run.exchange_ms = number(cost, "/exchange_ms");
}

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
                               {"itl_p99_ms", &RunFigures::itl_p99_ms}};

}  // namespace

RunFigures figures_of(const Json& record) {
  RunFigures run;
  run.ok = record.value("status", "") == "ok";
  run.error = record.value("error", "");
  run.repeat = record.value("repeat", 0);
  run.seconds = number(record, "/seconds");
  if (!run.ok) return run;
  const Json& report = record.at("report");
  run.synthetic = report.contains("synthetic_acceptance");
  if (report.contains("comparison")) read_comparison(report["comparison"], run);
  const Json metrics = report.value("metrics", Json::object());
  run.tokens_per_second = number(metrics, "/tokens_per_second");
  run.acceptance = number(metrics, "/rounds/acceptance_rate");
  run.tokens_per_pass = number(metrics, "/rounds/tokens_per_target_pass");
  run.bytes_per_accepted = number(metrics, "/wire/bytes_per_accepted_token");
  run.ttft_p50_ms = number(metrics, "/ttft/p50_ms");
  run.itl_p50_ms = number(metrics, "/itl/p50_ms");
  run.itl_p99_ms = number(metrics, "/itl/p99_ms");
  read_costs(metrics.value("cost_model", Json::object()), run);
  run.position_acceptance = numbers(metrics, "/rounds/position_acceptance");
  run.gamma_histogram = numbers(metrics, "/rounds/gamma_histogram");
  run.mean_gamma = mean_length(run.gamma_histogram);
  return run;
}

bool CellSummary::any_ok() const {
  return std::any_of(runs.begin(), runs.end(), [](const RunFigures& run) { return run.ok; });
}

Spread CellSummary::spread(double RunFigures::*figure) const {
  std::vector<double> values;
  for (const RunFigures& run : runs)
    if (run.ok) values.push_back(run.*figure);
  return values.empty() ? Spread{} : Spread::of(values);
}

std::vector<double> CellSummary::position_acceptance() const {
  std::vector<double> sum, count;
  for (const RunFigures& run : runs) {
    sum.resize(std::max(sum.size(), run.position_acceptance.size()));
    count.resize(sum.size());
    for (size_t i = 0; i < run.position_acceptance.size(); ++i)
      sum[i] += run.position_acceptance[i], count[i] += 1;
  }
  for (size_t i = 0; i < sum.size(); ++i) sum[i] /= count[i];
  return sum;
}

std::vector<double> CellSummary::gamma_histogram() const {
  std::vector<double> sum;
  for (const RunFigures& run : runs) {
    sum.resize(std::max(sum.size(), run.gamma_histogram.size()));
    for (size_t i = 0; i < run.gamma_histogram.size(); ++i) sum[i] += run.gamma_histogram[i];
  }
  return sum;
}

double CellGroup::best_fixed() const {
  double best = 0;
  for (const CellSummary* cell : cells)
    if (cell->cell.fixed_gamma()) best = std::max(best, cell->median_of(&RunFigures::tokens_per_second));
  return best;
}

double CellGroup::theory(int gamma) const {
  const auto median_over_cells = [&](double RunFigures::*figure) {
    std::vector<double> values;
    for (const CellSummary* cell : cells)
      if (const double value = cell->median_of(figure); value > 0) values.push_back(value);
    return values.empty() ? 0 : Spread::of(values).median;
  };
  const double plain = median_over_cells(&RunFigures::plain_step_ms);
  const double alpha = median_over_cells(&RunFigures::acceptance);
  if (plain <= 0 || alpha <= 0) return 0;
  return lockstep_speedup(std::min(alpha, 0.9999), gamma, median_over_cells(&RunFigures::draft_ms) / plain,
                          median_over_cells(&RunFigures::exchange_ms) / 2 / plain,
                          median_over_cells(&RunFigures::row_ms) / plain);
}

int StudySummary::failed() const {
  int count = 0;
  for (const CellSummary& cell : cells)
    for (const RunFigures& run : cell.runs) count += !run.ok;
  return count;
}

bool StudySummary::synthetic() const {
  for (const CellSummary& cell : cells)
    for (const RunFigures& run : cell.runs)
      if (run.synthetic) return true;
  return false;
}

std::vector<CellGroup> StudySummary::groups() const {
  std::vector<CellGroup> groups;
  for (const CellSummary& cell : cells) {
    const std::string name = cell.cell.group();
    auto group =
        std::find_if(groups.begin(), groups.end(), [&](const CellGroup& g) { return g.name == name; });
    if (group == groups.end()) group = groups.insert(groups.end(), CellGroup{name, {}});
    group->cells.push_back(&cell);
  }
  return groups;
}

StudySummary summarise(const StudyFile& study, const CellStore& store) {
  StudySummary summary{.study = study, .cells = {}};
  for (const Cell& cell : study.cells) {
    CellSummary found{.cell = cell, .runs = {}};
    for (int repeat = 0; repeat < study.repeats; ++repeat)
      if (const auto record = store.load(cell, repeat)) found.runs.push_back(figures_of(*record));
    summary.cells.push_back(std::move(found));
  }
  return summary;
}

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
