// When tokens came, and who worked when.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/report/html_parts.h"

namespace outrider {
namespace {

constexpr int kDraftColour = 0, kPrepareColour = 5, kVerifyColour = 1;

// The gap that a share of all gaps stays below.
double quantile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  const double at = std::ceil(share * static_cast<double>(sorted.size())) - 1;
  return sorted[static_cast<size_t>(std::clamp(at, 0.0, static_cast<double>(sorted.size() - 1)))];
}

// Cumulative, up to the longest 99th percentile of a cell: beyond it a few outliers would take all the room.
Chart gap_chart(const CellGroup& group) {
  Chart chart{.title = group.name,
              .x_label = "milliseconds between two tokens of a text",
              .y_label = "share of gaps at most so long",
              .series = {},
              .guide = -1,
              .x_names = {}};
  std::vector<std::vector<double>> gaps;
  double most = 0;
  for (const CellSummary* cell : group.cells) {
    gaps.push_back(cell->timeline.gaps_ms());
    most = std::max(most, quantile(gaps.back(), 0.99));
  }
  constexpr int kSteps = 120;
  for (size_t c = 0; c < gaps.size(); ++c) {
    if (gaps[c].empty()) continue;
    Series series{
        .name = group.names[c], .points = {}, .kind = Series::Kind::kCurve, .colour = static_cast<int>(c)};
    for (int i = 0; i <= kSteps; ++i) {
      const double at = most * i / kSteps;
      const auto below = std::upper_bound(gaps[c].begin(), gaps[c].end(), at) - gaps[c].begin();
      series.points.push_back(
          {.x = at, .y = static_cast<double>(below) / static_cast<double>(gaps[c].size())});
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

std::string latency_table(const CellGroup& group) {
  std::string rows;
  for (size_t c = 0; c < group.cells.size(); ++c) {
    const CellSummary& cell = *group.cells[c];
    if (!cell.any_ok()) continue;
    const auto ms = [&](double RunFigures::*figure) {
      return fmt::format("<td>{:.3g}</td>", cell.median_of(figure));
    };
    rows += fmt::format("<tr><td>{}</td>", escaped(group.names[c])) + ms(&RunFigures::ttft_p50_ms) +
            ms(&RunFigures::itl_p50_ms) + ms(&RunFigures::itl_p95_ms) + ms(&RunFigures::itl_p99_ms) +
            ms(&RunFigures::itl_variation) + ms(&RunFigures::pause_p50_ms) + ms(&RunFigures::pause_p99_ms) +
            fmt::format("<td>{:.2f}</td><td>{:.0f}</td></tr>\n", cell.median_of(&RunFigures::tokens_per_pass),
                        cell.median_of(&RunFigures::burst_p99));
  }
  if (rows.empty()) return "";
  return fmt::format(
      "<h3>{}</h3>\n<table>\n<tr><th>cell</th><th>first token<br/>median, ms</th><th>ITL p50<br/>ms</th>"
      "<th>p95</th><th>p99</th><th>ITL<br/>variation</th><th>between bursts<br/>p50, ms</th><th>p99</th>"
      "<th>tokens per burst<br/>mean</th><th>p99</th></tr>\n{}</table>\n",
      escaped(group.name), rows);
}

void add_spans(const std::vector<Interval>& from, Interval window, int colour, Lane& lane) {
  for (const Interval& span : from)
    if (span.end_ms > window.begin_ms && span.begin_ms < window.end_ms)
      lane.spans.push_back({span.begin_ms - window.begin_ms, span.end_ms - window.begin_ms, colour});
}

GanttRow gantt_row(const std::string& name, const Timeline& t, double length_ms) {
  const Interval window = t.middle(length_ms), whole{0, t.end_ms()};
  const auto idle = [&](const std::vector<const std::vector<Interval>*>& lists) {
    return fmt::format("idle {:.0f} %", 100 * (1 - covered_share(lists, whole)));
  };
  Lane draft{.name = "draft", .spans = {}, .note = idle({&t.draft, &t.prepare})};
  add_spans(t.prepare, window, kPrepareColour, draft);
  add_spans(t.draft, window, kDraftColour, draft);
  Lane verify{.name = "verify", .spans = {}, .note = idle({&t.verify})};
  add_spans(t.verify, window, kVerifyColour, verify);
  return {name, {std::move(draft), std::move(verify)}};
}

std::string gantt_of(const CellGroup& group) {
  constexpr double kPasses = 16;  // of the slowest cell
  double length_ms = 0;
  for (const CellSummary* cell : group.cells)
    if (const auto passes = cell->timeline.verify.size(); passes > 0)
      length_ms = std::max(length_ms, cell->timeline.end_ms() / static_cast<double>(passes) * kPasses);
  std::vector<GanttRow> rows;
  for (size_t c = 0; c < group.cells.size(); ++c)
    if (!group.cells[c]->timeline.verify.empty())
      rows.push_back(gantt_row(group.names[c], group.cells[c]->timeline, length_ms));
  return svg_gantt(group.name, length_ms, rows);
}

}  // namespace

std::string latency_section(const StudySummary& s) {
  std::string charts, tables;
  for (const CellGroup& group : s.panels()) {
    charts += svg_chart(gap_chart(group));
    tables += latency_table(group);
  }
  return section("Inter-token latency and burstiness",
                 "The tokens of a round come at once: gaps of 0, where a curve starts, are tokens inside a "
                 "burst, and what users see is the time between bursts. Variation: deviation of all gaps "
                 "over their mean; 0 is a metronome. Curves from one run of each cell, tables from all.",
                 charts + tables);
}

std::string gantt_section(const StudySummary& s) {
  std::string drawn;
  for (const CellGroup& group : s.panels()) drawn += gantt_of(group);
  return section(
      "Draft and verify",
      fmt::format(
          "A stretch from the middle of one run of each cell: <b style=\"color:{}\">drafting</b>, "
          "<b style=\"color:{}\">drafting ahead</b>, <b style=\"color:{}\">verification</b>; idle "
          "in between. Workers report how long they were busy, not when: each is drawn in the middle of "
          "its wait. Idle shares are of the whole run.",
          "#0072b2", "#56b4e9", "#d55e00"),
      drawn);
}

}  // namespace outrider
