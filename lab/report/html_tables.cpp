// Tables and bars: cells side by side.
#include <fmt/format.h>

#include <algorithm>

#include "lab/report/html_parts.h"

namespace outrider {
namespace {

std::string bars(const std::vector<CellGroup>& groups, double RunFigures::*figure) {
  std::string drawn;
  for (const CellGroup& group : groups) {
    std::vector<Bar> rows;
    for (size_t c = 0; c < group.cells.size(); ++c) {
      const CellSummary& cell = *group.cells[c];
      const Spread spread = cell.spread(figure);
      if (cell.any_ok())
        rows.push_back(
            {group.names[c], spread.median, spread.low, spread.high, cell.cell.fixed_gamma() ? 0 : 1});
    }
    drawn += svg_bars(group.name, rows);
  }
  return drawn;
}

std::string percent(std::optional<double> share) {
  return share ? fmt::format("<td>{:.1f} %</td>", 100 * *share) : "<td>-</td>";
}

std::string text_of(const CellSummary& cell) {
  const auto any = [&](const char* verdict) {
    return std::any_of(cell.runs.begin(), cell.runs.end(),
                       [&](const RunFigures& run) { return run.identical == verdict; });
  };
  const auto failed =
      std::count_if(cell.runs.begin(), cell.runs.end(), [](const auto& run) { return !run.ok; });
  std::string out = any("no") ? "differs" : any("yes") ? "identical" : "-";
  if (failed > 0) out += fmt::format(", <span class=\"failed\">{} FAILED</span>", failed);
  return out;
}

std::string row_of(const CellSummary& cell, const CellGroup& group) {
  std::string out = fmt::format("<tr><td>{}</td>", escaped(cell.cell.label()));
  if (!cell.any_ok()) {
    const char* state = cell.runs.empty() ? "not run yet" : "<span class=\"failed\">FAILED</span>";
    return out + fmt::format("<td colspan=\"11\">{}</td></tr>\n", state);
  }
  const Spread rate = cell.spread(&RunFigures::tokens_per_second);
  out += fmt::format("<td>{}</td><td>{:.1f}</td><td>{:.1f} to {:.1f}</td>", cell.runs.size(), rate.median,
                     rate.low, rate.high);
  const bool compared = cell.median_of(&RunFigures::speedup) > 0;
  out += compared ? fmt::format("<td>{:.3f}</td><td>{:.3f}</td>", cell.median_of(&RunFigures::speedup),
                                cell.median_of(&RunFigures::predicted_speedup))
                  : "<td>-</td><td>-</td>";
  out += percent(group.regret(cell));
  return out + fmt::format("<td>{:.3f}</td><td>{:.2f}</td><td>{:.0f}</td><td>{:.2f}</td><td>{}</td></tr>\n",
                           cell.median_of(&RunFigures::acceptance), cell.median_of(&RunFigures::mean_gamma),
                           cell.median_of(&RunFigures::bytes_per_accepted),
                           cell.median_of(&RunFigures::verify_predicted), text_of(cell));
}

// Of those that choose their length; null without any.
const CellSummary* best_policy(const CellGroup& group) {
  const CellSummary* best = nullptr;
  for (const CellSummary* cell : group.cells) {
    if (cell->cell.fixed_gamma() || !cell->any_ok()) continue;
    const auto rate = [](const CellSummary& c) { return c.median_of(&RunFigures::tokens_per_second); };
    if (!best || rate(*cell) > rate(*best)) best = cell;
  }
  return best;
}

std::string brief(const CellSummary* cell) {
  if (!cell) return "<td>-</td><td>-</td><td>-</td>";
  const double speedup = cell->median_of(&RunFigures::speedup);
  return fmt::format("<td>{}</td><td>{:.1f}</td><td>{}</td>", escaped(cell->cell.choice()),
                     cell->median_of(&RunFigures::tokens_per_second),
                     speedup > 0 ? fmt::format("{:.2f}", speedup) : "-");
}

}  // namespace

std::string overview_table(const StudySummary& summary) {
  std::string rows;
  for (const CellGroup& group : summary.groups()) {
    const CellSummary* policy = best_policy(group);
    rows += fmt::format("<tr><td>{}</td>{}{}{}</tr>\n", escaped(group.name), brief(group.best_fixed()),
                        brief(policy), percent(policy ? group.regret(*policy) : std::nullopt));
  }
  return "<table>\n<tr><th></th><th>best fixed length</th><th>tokens/s</th><th>speed-up</th>"
         "<th>best policy</th><th>tokens/s</th><th>speed-up</th><th>regret</th></tr>\n" +
         rows + "</table>\n";
}

std::string rate_section(const StudySummary& s) {
  return section("Tokens per second", "Blue: fixed lengths; orange: policies that choose.",
                 bars(s.panels(), &RunFigures::tokens_per_second));
}

std::string regret_section(const StudySummary& s) {
  std::string drawn;
  for (const CellGroup& group : s.groups()) {
    std::vector<Bar> rows;
    for (size_t c = 0; c < group.cells.size(); ++c)
      if (const auto regret = group.regret(*group.cells[c]); regret && group.cells.size() > 1)
        rows.push_back({.name = group.names[c],
                        .value = 100 * *regret,
                        .colour = group.cells[c]->cell.fixed_gamma() ? 0 : 1});
    drawn += svg_bars(group.name, rows, " %");
  }
  return section(
      "Regret against the best fixed length",
      "Tokens/s lost against the fixed length that was best in hindsight; below 0: faster than all "
      "of them.",
      drawn);
}

std::string wire_section(const StudySummary& s) {
  return section("Bytes on the wire per accepted token",
                 "Sent and received by the coordinator, all messages.",
                 bars(s.panels(), &RunFigures::bytes_per_accepted));
}

std::string cell_table(const StudySummary& summary) {
  std::string rows;
  for (const CellGroup& group : summary.groups())
    for (const CellSummary* cell : group.cells) rows += row_of(*cell, group);
  return section(
      "All cells",
      "Predicted: the run's own acceptance and times in the formula. Regret: as above. Verify model: time of "
      "all target passes as the fitted cost model foretold it, over the measured. Text: against plain "
      "decoding.",
      "<table>\n<tr><th>cell</th><th>runs</th><th>tokens/s</th><th>lowest to highest</th><th>speed-up</th>"
      "<th>predicted</th><th>regret</th><th>acceptance</th><th>mean gamma</th><th>bytes per accepted</th>"
      "<th>verify model</th><th>text</th></tr>\n" +
          rows + "</table>\n");
}

std::string failed_runs(const StudySummary& summary) {
  std::string out;
  for (const CellSummary& cell : summary.cells)
    for (const RunFigures& run : cell.runs)
      if (!run.ok)
        out += fmt::format("<pre class=\"failed\">{}, repeat {}: {}</pre>\n", escaped(cell.cell.label()),
                           run.repeat + 1, escaped(run.error));
  return section("Failed runs", "Their cells count without them.", out);
}

}  // namespace outrider
