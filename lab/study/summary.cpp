#include "lab/study/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "coordinator/gamma/closed_forms.h"
#include "lab/study/findings.h"
#include "lab/study/names.h"

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
  run.verify_predicted = number(cost, "/verify_predicted_over_measured");
}

double total(const std::vector<RunFigures>& runs, double RunFigures::*figure) {
  double sum = 0;
  for (const RunFigures& run : runs) sum += run.*figure;
  return sum;
}

std::vector<double> summed(const std::vector<RunFigures>& runs, std::vector<double> RunFigures::*figures) {
  std::vector<double> sum;
  for (const RunFigures& run : runs) {
    const std::vector<double>& values = run.*figures;
    sum.resize(std::max(sum.size(), values.size()));
    for (size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
  }
  return sum;
}

}  // namespace

const char* speed_verdict(const Ratio& ratio) {
  return ratio.is_above(1) ? "faster" : ratio.is_below(1) ? "slower" : "not distinguishable";
}

RunFigures figures_of(const Json& record) {
  RunFigures run;
  run.ok = record.value("status", "") == "ok";
  run.error = record.value("error", "");
  run.repeat = record.value("repeat", 0);
  run.seconds = number(record, "/seconds");
  if (!run.ok) return run;
  const Json& report = record.at("report");
  const Json origin = report.value("provenance", Json::object());
  run.by_category = report.value("by_category", Json());
  run.commit = origin.value("commit", "");
  run.host = origin.value("host", "");
  run.other_cores = number(record, "/machine/other_cores");
  run.steal_share = number(record, "/machine/steal_share");
  run.read_bandwidth = number(record, "/machine/read_bandwidth_bytes_per_s");
  run.synthetic = report.contains("synthetic_acceptance");
  if (report.contains("comparison")) read_comparison(report["comparison"], run);
  const Json metrics = report.value("metrics", Json::object());
  run.tokens_per_second = number(metrics, "/tokens_per_second");
  run.acceptance = number(metrics, "/rounds/acceptance_rate");
  run.accepted_tokens = number(metrics, "/rounds/accepted_tokens");
  run.tested_tokens = number(metrics, "/rounds/tested_tokens");
  run.drafted_tokens = number(metrics, "/rounds/drafted_tokens");
  run.tokens_per_round = number(metrics, "/rounds/tokens_per_round");
  run.bytes_per_accepted = number(metrics, "/wire/bytes_per_accepted_token");
  run.ttft_p50_ms = number(metrics, "/ttft/p50_ms");
  run.itl_p50_ms = number(metrics, "/itl/p50_ms");
  run.itl_p95_ms = number(metrics, "/itl/p95_ms");
  run.itl_p99_ms = number(metrics, "/itl/p99_ms");
  run.itl_variation = number(metrics, "/itl/coefficient_of_variation");
  run.pause_p50_ms = number(metrics, "/itl_bursts/p50_ms");
  run.pause_p99_ms = number(metrics, "/itl_bursts/p99_ms");
  run.burst_p99 = number(metrics, "/rounds/burst_p99");
  run.target_idle = number(metrics, "/phases/target_idle_share");
  run.draft_idle = number(metrics, "/phases/draft_idle_share");
  run.hit_rate = number(metrics, "/outcome_cache/hit_rate");
  read_costs(metrics.value("cost_model", Json::object()), run);
  run.position_acceptance = numbers(metrics, "/rounds/position_acceptance");
  run.position_accepted = numbers(metrics, "/rounds/position_accepted");
  run.position_tested = numbers(metrics, "/rounds/position_tested");
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

Share CellSummary::acceptance() const {
  return {.count = static_cast<int64_t>(total(runs, &RunFigures::accepted_tokens)),
          .of = static_cast<int64_t>(total(runs, &RunFigures::tested_tokens))};
}

Share CellSummary::utilisation() const {
  return {.count = static_cast<int64_t>(total(runs, &RunFigures::accepted_tokens)),
          .of = static_cast<int64_t>(total(runs, &RunFigures::drafted_tokens))};
}

Ratio CellSummary::speedup() const {
  std::vector<double> ratios;
  for (const RunFigures& run : runs)
    if (run.ok && run.speedup > 0) ratios.push_back(run.speedup);
  return paired_ratio(ratios);
}

// A position that few drafts reach says little in one run, so counts are added up, not rates.
std::vector<double> CellSummary::position_acceptance() const {
  std::vector<double> rates = summed(runs, &RunFigures::position_accepted);
  const std::vector<double> tested = summed(runs, &RunFigures::position_tested);
  rates.resize(tested.size());
  for (size_t i = 0; i < rates.size(); ++i) rates[i] = tested[i] > 0 ? rates[i] / tested[i] : 0;
  return rates;
}

std::vector<double> CellSummary::gamma_histogram() const {
  return summed(runs, &RunFigures::gamma_histogram);
}

Ratio rate_ratio(const CellSummary& above, const CellSummary& below) {
  std::vector<double> ratios;
  for (const RunFigures& one : above.runs)
    for (const RunFigures& other : below.runs)
      if (one.ok && other.ok && one.repeat == other.repeat && one.tokens_per_second > 0 &&
          other.tokens_per_second > 0)
        ratios.push_back(one.tokens_per_second / other.tokens_per_second);
  return paired_ratio(ratios);
}

const CellSummary* CellGroup::best_fixed() const {
  const CellSummary* best = nullptr;
  for (const CellSummary* cell : cells) {
    if (!cell->cell.fixed_gamma() || !cell->any_ok()) continue;
    const auto rate = [](const CellSummary& c) { return c.median_of(&RunFigures::tokens_per_second); };
    if (!best || rate(*cell) > rate(*best)) best = cell;
  }
  return best;
}

Ratio CellGroup::of_best_fixed(const CellSummary& cell) const {
  const CellSummary* best = best_fixed();
  return best ? rate_ratio(cell, *best) : Ratio{};
}

std::optional<Regret> CellGroup::regret(const CellSummary& cell) const {
  const Ratio ratio = of_best_fixed(cell);
  if (!ratio.measured()) return std::nullopt;
  Regret regret{.value = 1 - ratio.value};
  if (ratio.has_interval() && &cell != best_fixed()) regret.low = 1 - ratio.high, regret.high = 1 - ratio.low;
  return regret;
}

double CellGroup::theory(int gamma) const {
  const auto median_over_cells = [&](double RunFigures::*figure) {
    std::vector<double> values;
    for (const CellSummary* cell : cells)
      if (const double value = cell->median_of(figure); value > 0) values.push_back(value);
    return values.empty() ? 0 : Spread::of(values).median;
  };
  const double plain = median_over_cells(&RunFigures::plain_step_ms);
  Share accepted;
  for (const CellSummary* cell : cells) accepted += cell->acceptance();
  const double alpha = accepted.value();
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

namespace {

// Names say what differs: of groups among all, of cells within their group.
template <class KeyOf>
std::vector<CellGroup> grouped(const StudySummary& summary, KeyOf key_of, NamedBy of_groups, NamedBy within,
                               const std::string& x_axis) {
  std::vector<CellGroup> groups;
  std::vector<std::string> keys;
  for (const CellSummary& cell : summary.cells) {
    const std::string key = key_of(cell.cell);
    const auto at = static_cast<size_t>(std::find(keys.begin(), keys.end(), key) - keys.begin());
    if (at == keys.size()) {
      keys.push_back(key);
      groups.emplace_back();
    }
    groups[at].cells.push_back(&cell);
  }
  std::vector<const Cell*> firsts;
  for (CellGroup& group : groups) {
    firsts.push_back(&group.cells.front()->cell);
    std::vector<const Cell*> cells;
    for (const CellSummary* cell : group.cells) cells.push_back(&cell->cell);
    group.names = short_names(cells, within, x_axis);
    for (size_t c = 0; c < cells.size(); ++c)
      if (group.names[c].empty()) group.names[c] = short_value("gamma-policy", cells[c]->choice());
  }
  const auto names = short_names(firsts, of_groups);
  for (size_t g = 0; g < groups.size(); ++g) groups[g].name = x_axis.empty() ? names[g] : keys[g];
  return groups;
}

std::string setting_of(const Json& report) {
  const auto text = [&](const char* pointer) { return report.value(Json::json_pointer(pointer), ""); };
  const std::string draft = text("/draft/name");
  return fmt::format("Target {}, {}, on {} ({}).", text("/target/name"),
                     draft.empty() ? "no draft model" : "draft " + draft, text("/device"), text("/isa"));
}

}  // namespace

std::vector<CellGroup> StudySummary::groups() const {
  return grouped(
      *this, [](const Cell& cell) { return cell.group(); }, NamedBy::kAllButLength, NamedBy::kLengthOnly, "");
}

std::vector<CellGroup> StudySummary::panels() const {
  const std::string& key = study.x_axis;
  if (key.empty()) return groups();
  return grouped(
      *this,
      [&](const Cell& cell) {
        return cell.values.contains(key) ? short_value(key, cell.values.at(key)) : "no " + key;
      },
      NamedBy::kAll, NamedBy::kAll, key);
}

StudySummary summarise(const StudyFile& study, const CellStore& store) {
  StudySummary summary{.study = study, .cells = {}, .setting = {}, .conclusions = {}, .warnings = {}};
  for (const Cell& cell : study.cells) {
    CellSummary found{.cell = cell, .runs = {}, .timeline = {}};
    for (int repeat = 0; repeat < study.repeats; ++repeat) {
      const auto record = store.load(cell, repeat);
      if (!record) continue;
      found.runs.push_back(figures_of(*record));
      if (!found.runs.back().ok) continue;
      if (found.timeline.rounds.empty()) found.timeline = timeline_of(record->value("timeline", Json()));
      if (summary.setting.empty()) summary.setting = setting_of(record->at("report"));
    }
    summary.cells.push_back(std::move(found));
  }
  summary.conclusions = conclusions_of(summary);
  summary.warnings = warnings_of(summary);
  return summary;
}

}  // namespace outrider
