// When tokens came, and who worked when.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/study/study_report.h"

namespace outrider {
namespace {

using report::Entry;
using report::Figure;
using report::Lanes;
using report::Plot;
using report::Series;

// The gap that a share of all gaps stays below.
double quantile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  const double at = std::ceil(share * static_cast<double>(sorted.size())) - 1;
  return sorted[static_cast<size_t>(std::clamp(at, 0.0, static_cast<double>(sorted.size() - 1)))];
}

// Cumulative, up to the longest 99th percentile of a cell: beyond it a few outliers would take all the room.
Figure gap_figure(const std::vector<CellGroup>& groups) {
  constexpr int kSteps = 90;
  std::vector<std::vector<double>> gaps;
  double most = 0;
  for (const CellGroup& group : groups)
    for (const CellSummary* cell : group.cells) {
      gaps.push_back(cell->timeline.gaps_ms());
      most = std::max(most, quantile(gaps.back(), 0.99));
    }
  Plot plot{.x = {.label = "time between two tokens of a text", .unit = "ms", .names = {}},
            .y = {.label = "share of gaps at most so long", .unit = "", .names = {}},
            .guide = {},
            .guide_name = "",
            .panels = {}};
  size_t next = 0;
  for (const CellGroup& group : groups) {
    Plot::Panel panel{.title = group.name, .series = {}};
    for (size_t c = 0; c < group.cells.size(); ++c) {
      const std::vector<double>& of_cell = gaps[next++];
      Series series{.name = group.names[c], .points = {}, .kind = Series::Kind::kCurve, .thing = ""};
      for (int i = 0; i <= kSteps && !of_cell.empty(); ++i) {
        const double at = most * i / kSteps;
        const auto below = std::upper_bound(of_cell.begin(), of_cell.end(), at) - of_cell.begin();
        series.points.push_back(
            {at, {static_cast<double>(below) / static_cast<double>(of_cell.size()), 0, 0}});
      }
      panel.series.push_back(std::move(series));
    }
    plot.panels.push_back(std::move(panel));
  }
  return {"Time between tokens",
          "The tokens of a round come at once: where a curve starts is the share of tokens inside a burst. "
          "One run of "
          "each cell.",
          std::move(plot)};
}

report::Table latency_table(const std::vector<CellGroup>& groups) {
  report::Table table{
      .title = "Latency",
      .text =
          "Medians over repeats. ITL: time between tokens, zeros inside bursts included; what users see is "
          "the time "
          "between bursts. Variation: deviation of all gaps over their mean; 0 is a metronome.",
      .columns = {{.name = "cell", .unit = "", .is_text = true},
                  {"first token", "ms"},
                  {"ITL p50", "ms"},
                  {"ITL p95", "ms"},
                  {"ITL p99", "ms"},
                  {"ITL variation", ""},
                  {"between bursts p50", "ms"},
                  {"between bursts p99", "ms"},
                  {"tokens per burst", "mean"},
                  {"tokens per burst", "p99"}},
      .rows = {}};
  for (const CellGroup& group : groups)
    for (size_t c = 0; c < group.cells.size(); ++c) {
      const CellSummary& cell = *group.cells[c];
      if (!cell.any_ok()) continue;
      const auto ms = [&](double RunFigures::*figure) {
        return Entry{fmt::format("{:.3g}", cell.median_of(figure))};
      };
      table.rows.push_back(
          {Entry{group.name.empty() ? group.names[c] : fmt::format("{}: {}", group.name, group.names[c])},
           ms(&RunFigures::ttft_p50_ms), ms(&RunFigures::itl_p50_ms), ms(&RunFigures::itl_p95_ms),
           ms(&RunFigures::itl_p99_ms), ms(&RunFigures::itl_variation), ms(&RunFigures::pause_p50_ms),
           ms(&RunFigures::pause_p99_ms),
           Entry{fmt::format("{:.2f}", cell.median_of(&RunFigures::tokens_per_round))},
           Entry{fmt::format("{:.0f}", cell.median_of(&RunFigures::burst_p99))}});
    }
  return table;
}

void add_spans(const std::vector<Interval>& from, Interval window, const char* thing, Lanes::Lane& lane) {
  for (const Interval& span : from)
    if (span.end_ms > window.begin_ms && span.begin_ms < window.end_ms)
      lane.spans.push_back({std::max(span.begin_ms, window.begin_ms) - window.begin_ms,
                            std::min(span.end_ms, window.end_ms) - window.begin_ms, thing});
}

Lanes::Panel lanes_of(const std::string& title, const Timeline& t, double length_ms) {
  const Interval window = t.middle(length_ms), whole{0, t.end_ms()};
  const auto idle = [&](const std::vector<const std::vector<Interval>*>& lists) {
    return fmt::format("idle {:.0f} %", 100 * (1 - covered_share(lists, whole)));
  };
  Lanes::Lane draft{.name = "draft", .spans = {}, .note = idle({&t.draft, &t.prepare})};
  add_spans(t.prepare, window, "drafting ahead", draft);
  add_spans(t.draft, window, "drafting", draft);
  Lanes::Lane verify{.name = "verify", .spans = {}, .note = idle({&t.verify})};
  add_spans(t.verify, window, "verification", verify);
  return {title, {std::move(draft), std::move(verify)}};
}

Figure lanes_figure(const std::vector<CellGroup>& groups) {
  constexpr double kPasses = 12;  // of the slowest cell
  Lanes lanes;
  for (const CellGroup& group : groups)
    for (const CellSummary* cell : group.cells)
      if (const auto passes = cell->timeline.verify.size(); passes > 0)
        lanes.length_ms =
            std::max(lanes.length_ms, cell->timeline.end_ms() / static_cast<double>(passes) * kPasses);
  for (const CellGroup& group : groups)
    for (size_t c = 0; c < group.cells.size(); ++c)
      if (!group.cells[c]->timeline.verify.empty())
        lanes.panels.push_back(
            lanes_of(group.name.empty() ? group.names[c] : fmt::format("{}: {}", group.name, group.names[c]),
                     group.cells[c]->timeline, lanes.length_ms));
  return {"Draft and verify",
          "A stretch from the middle of one run of each cell. Workers report how long they were busy, not "
          "when: each "
          "span has its measured length and is drawn in the middle of its wait. Idle shares are of the whole "
          "run.",
          std::move(lanes)};
}

}  // namespace

report::Section latency_section(const StudySummary& s) {
  const auto groups = s.panels();
  return {"Latency and burstiness", "", {gap_figure(groups), latency_table(groups)}};
}

report::Section occupation_section(const StudySummary& s) {
  return {"Which role works when", "", {lanes_figure(s.panels())}};
}

}  // namespace outrider
