#include "launch/study/html_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/version.h"
#include "launch/study/svg.h"

namespace outrider {
namespace {

constexpr const char* kHead = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<title>{0}</title>
<style>
body {{ font: 14px/1.45 sans-serif; max-width: 1200px; margin: 24px auto; padding: 0 16px; color: #222; }}
svg {{ font: 11px sans-serif; vertical-align: top; margin: 4px 6px 8px 0; max-width: 100%; break-inside: avoid; }}
table {{ border-collapse: collapse; font-size: 12px; }}
th, td {{ padding: 2px 8px; border-bottom: 1px solid #ddd; text-align: right; }}
th:first-child, td:first-child {{ text-align: left; }}
.failed, .warning {{ color: #a00; }}
pre {{ white-space: pre-wrap; }}
h2 {{ break-after: avoid; margin-top: 28px; }}
</style>
</head>
<body>
<h1>{0}</h1>
)";

Point point_of(double x, const Spread& spread) {
  return {.x = x, .y = spread.median, .low = spread.low, .high = spread.high};
}

std::string introduction(const StudySummary& s) {
  size_t there = 0;
  for (const CellSummary& cell : s.cells) there += cell.runs.size();
  std::string out = fmt::format(
      "<p>{} cells, {} of {} runs finished, {} of them failed. Written by outrider {}. Figures are medians "
      "over "
      "repeats; whiskers reach from the lowest to the highest.</p>\n",
      s.cells.size(), there, s.cells.size() * static_cast<size_t>(s.study.repeats), s.failed(), kVersion);
  if (s.synthetic())
    out +=
        "<p class=\"warning\"><b>SYNTHETIC ACCEPTANCE</b>: in some cells a stated process decided what was "
        "accepted. Work and times are real, the text means nothing.</p>\n";
  return out;
}

// Measured fixed lengths, theory through them, and each adaptive policy at the mean length it chose.
Chart speedup_chart(const CellGroup& group) {
  Chart chart{
      .title = group.name, .x_label = "draft length gamma", .y_label = "speed-up", .series = {}, .guide = 1};
  Series fixed{.name = "fixed length, measured", .points = {}};
  int colour = 1;
  std::vector<Series> policies;
  for (const CellSummary* cell : group.cells) {
    const Spread speedup = cell->spread(&RunFigures::speedup);
    if (speedup.median <= 0) continue;
    if (const auto gamma = cell->cell.fixed_gamma()) {
      fixed.points.push_back(point_of(*gamma, speedup));
    } else {
      const double length = cell->median_of(&RunFigures::mean_gamma);
      policies.push_back({.name = fmt::format("{} (at its mean length)", cell->cell.choice()),
                          .points = {point_of(length, speedup)},
                          .kind = Series::Kind::kMarks,
                          .colour = colour++});
    }
  }
  std::sort(fixed.points.begin(), fixed.points.end(),
            [](const Point& a, const Point& b) { return a.x < b.x; });
  double most = fixed.points.empty() ? 0 : fixed.points.back().x;
  for (const Series& policy : policies) most = std::max(most, std::ceil(policy.points[0].x));
  Series theory{.name = "theory: lockstep, i.i.d. acceptance",
                .points = {},
                .kind = Series::Kind::kDashed,
                .colour = 6};
  for (int gamma = 1; gamma <= most; ++gamma)
    if (const double speedup = group.theory(gamma); speedup > 0)
      theory.points.push_back({.x = static_cast<double>(gamma), .y = speedup});
  if (!fixed.points.empty()) chart.series.push_back(std::move(fixed));
  if (!chart.series.empty() || !policies.empty()) chart.series.push_back(std::move(theory));
  for (Series& policy : policies) chart.series.push_back(std::move(policy));
  return chart;
}

Chart position_chart(const CellGroup& group) {
  Chart chart{.title = group.name,
              .x_label = "position in the draft",
              .y_label = "accepted, of those tested",
              .series = {}};
  int colour = 0;
  for (const CellSummary* cell : group.cells) {
    Series series{.name = cell->cell.choice(), .points = {}, .colour = colour++};
    const auto acceptance = cell->position_acceptance();
    for (size_t i = 0; i < acceptance.size(); ++i)
      series.points.push_back({.x = static_cast<double>(i + 1), .y = acceptance[i]});
    if (!series.points.empty()) chart.series.push_back(std::move(series));
  }
  return chart;
}

std::string charts(const StudySummary& summary, const char* heading, const char* explanation,
                   Chart (*make)(const CellGroup&)) {
  std::string drawn;
  for (const CellGroup& group : summary.groups()) drawn += svg_chart(make(group));
  if (drawn.empty()) return "";
  return fmt::format("<h2>{}</h2>\n<p>{}</p>\n<div>\n{}</div>\n", heading, explanation, drawn);
}

std::string histograms(const StudySummary& summary) {
  std::string drawn;
  for (const CellGroup& group : summary.groups()) {
    std::string of_group;
    int colour = 0;
    for (const CellSummary* cell : group.cells)
      of_group += svg_histogram(cell->cell.choice(), cell->gamma_histogram(), colour++);
    if (!of_group.empty())
      drawn += fmt::format("<h3>{}</h3>\n<div>\n{}</div>\n", escaped(group.name), of_group);
  }
  return drawn.empty() ? "" : "<h2>Chosen draft lengths</h2>\n<p>Share of rounds by length.</p>\n" + drawn;
}

std::string bars(const StudySummary& summary, const char* heading, double RunFigures::*figure) {
  std::string drawn;
  for (const CellGroup& group : summary.groups()) {
    std::vector<Bar> rows;
    for (const CellSummary* cell : group.cells) {
      const Spread spread = cell->spread(figure);
      if (cell->any_ok())
        rows.push_back(
            {cell->cell.choice(), spread.median, spread.low, spread.high, cell->cell.fixed_gamma() ? 0 : 1});
    }
    if (!rows.empty()) drawn += svg_bars(group.name, rows);
  }
  return drawn.empty() ? "" : fmt::format("<h2>{}</h2>\n<div>\n{}</div>\n", heading, drawn);
}

std::string row_of(const CellSummary& cell, double best_fixed) {
  std::string out = fmt::format("<tr><td>{}</td>", escaped(cell.cell.label()));
  if (!cell.any_ok()) {
    const char* state = cell.runs.empty() ? "not run yet" : "<span class=\"failed\">FAILED</span>";
    return out + fmt::format("<td colspan=\"10\">{}</td></tr>\n", state);
  }
  const Spread rate = cell.spread(&RunFigures::tokens_per_second);
  const auto failed =
      std::count_if(cell.runs.begin(), cell.runs.end(), [](const auto& run) { return !run.ok; });
  const bool differs =
      std::any_of(cell.runs.begin(), cell.runs.end(), [](const auto& run) { return run.identical == "no"; });
  const bool compared = cell.median_of(&RunFigures::speedup) > 0;
  out += fmt::format("<td>{}</td><td>{:.1f}</td><td>{:.1f} to {:.1f}</td>", cell.runs.size(), rate.median,
                     rate.low, rate.high);
  out += compared ? fmt::format("<td>{:.3f}</td><td>{:.3f}</td>", cell.median_of(&RunFigures::speedup),
                                cell.median_of(&RunFigures::predicted_speedup))
                  : "<td>-</td><td>-</td>";
  out +=
      best_fixed > 0 ? fmt::format("<td>{:.1f} %</td>", 100 * (1 - rate.median / best_fixed)) : "<td>-</td>";
  out +=
      fmt::format("<td>{:.3f}</td><td>{:.2f}</td><td>{:.0f}</td>", cell.median_of(&RunFigures::acceptance),
                  cell.median_of(&RunFigures::mean_gamma), cell.median_of(&RunFigures::bytes_per_accepted));
  const std::string failures =
      failed > 0 ? fmt::format("<span class=\"failed\">{} FAILED</span>", failed) : "";
  return out + fmt::format("<td>{}{}</td></tr>\n",
                           !compared ? "-"
                           : differs ? "differs"
                                     : "identical",
                           failures.empty() ? "" : ", " + failures);
}

std::string table(const StudySummary& summary) {
  std::string out =
      "<h2>All cells</h2>\n<p>Regret: tokens/s lost against the fixed length of the same group that was best "
      "in "
      "hindsight; below 0: faster than all of them. Predicted: the run's own acceptance and times in the "
      "formula. Text: against plain decoding.</p>\n<table>\n<tr><th>cell</th><th>runs</th><th>tokens/s</th>"
      "<th>lowest to highest</th><th>speed-up</th><th>predicted</th><th>regret</th><th>acceptance</th>"
      "<th>mean gamma</th><th>bytes per accepted</th><th>text</th></tr>\n";
  for (const CellGroup& group : summary.groups())
    for (const CellSummary* cell : group.cells) out += row_of(*cell, group.best_fixed());
  return out + "</table>\n";
}

std::string failures(const StudySummary& summary) {
  std::string out;
  for (const CellSummary& cell : summary.cells)
    for (const RunFigures& run : cell.runs)
      if (!run.ok)
        out += fmt::format("<pre class=\"failed\">{}, repeat {}: {}</pre>\n", escaped(cell.cell.label()),
                           run.repeat + 1, escaped(run.error));
  return out.empty() ? "" : "<h2>Failed runs</h2>\n" + out;
}

}  // namespace

std::string html_report(const StudySummary& s) {
  return fmt::format(kHead, escaped(s.study.name)) + introduction(s) + failures(s) +
         charts(s, "Speed-up against draft length",
                "Over plain decoding in the same process. The theory takes the group's median acceptance, "
                "draft, "
                "verification and exchange times; it knows one sequence in lockstep. Below the line at 1 "
                "nothing "
                "is gained.",
                speedup_chart) +
         charts(s, "Acceptance by position",
                "Of the drafts that reached the position unrejected. Late positions rest on few drafts.",
                position_chart) +
         histograms(s) + bars(s, "Tokens per second", &RunFigures::tokens_per_second) +
         bars(s, "Bytes on the wire per accepted token", &RunFigures::bytes_per_accepted) + table(s) +
         "</body>\n</html>\n";
}

}  // namespace outrider
