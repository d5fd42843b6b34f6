// Figures over draft length, position and the swept axis.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lab/study/names.h"
#include "lab/study/study_report.h"

namespace outrider {
namespace {

using report::Bars;
using report::Figure;
using report::Plot;
using report::Point;
using report::Series;

constexpr const char* kSpeedup = "speed-up over plain decoding";

// Measured fixed lengths, theory through them, and each policy at the mean length that it chose.
Plot::Panel speedup_panel(const CellGroup& group) {
  Series fixed{.name = "fixed length, measured", .points = {}, .thing = "fixed length"};
  std::vector<Series> policies;
  double most = 0;
  for (size_t c = 0; c < group.cells.size(); ++c) {
    const CellSummary& cell = *group.cells[c];
    const Spread speedup = cell.spread(&RunFigures::speedup);
    if (speedup.median <= 0) continue;
    const auto gamma = cell.cell.fixed_gamma();
    const double length = gamma ? *gamma : cell.median_of(&RunFigures::mean_gamma);
    most = std::max(most, std::ceil(length));
    const Point point{length, value_of(speedup)};
    if (gamma)
      fixed.points.push_back(point);
    else
      policies.push_back({.name = fmt::format("{}, at its mean length", group.names[c]),
                          .points = {point},
                          .kind = Series::Kind::kMarks,
                          .thing = group.names[c]});
  }
  std::sort(fixed.points.begin(), fixed.points.end(),
            [](const Point& a, const Point& b) { return a.x < b.x; });
  Series theory{.name = "theory: lockstep, i.i.d. acceptance",
                .points = {},
                .kind = Series::Kind::kTheory,
                .thing = "theory"};
  for (int gamma = 1; gamma <= most; ++gamma)
    if (const double speedup = group.theory(gamma); speedup > 0)
      theory.points.push_back({static_cast<double>(gamma), {speedup, 0, 0}});
  Plot::Panel panel{.title = group.name, .series = {std::move(theory), std::move(fixed)}};
  panel.series.insert(panel.series.end(), policies.begin(), policies.end());
  return panel;
}

// A curve over draft length needs lengths.
bool has_lengths(const CellGroup& group) {
  return std::count_if(group.cells.begin(), group.cells.end(), [](const CellSummary* cell) {
           return cell->cell.fixed_gamma().has_value() && cell->median_of(&RunFigures::speedup) > 0;
         }) >= 2;
}

Figure speedup_figure(const StudySummary& s) {
  Plot plot{.x = {.label = "draft length gamma", .unit = "tokens", .names = {}},
            .y = {.label = kSpeedup, .unit = "", .names = {}},
            .guide = 1,
            .guide_name = "plain",
            .panels = {}};
  for (const CellGroup& group : s.groups())
    if (has_lengths(group)) plot.panels.push_back(speedup_panel(group));
  return {"Speed-up against draft length",
          "Over plain decoding in the same process. The theory takes a group's median acceptance, draft, "
          "verification "
          "and exchange times; it knows one sequence in lockstep.",
          std::move(plot)};
}

Figure bars_figure(const StudySummary& s, const char* title, const char* text, report::Axis axis,
                   double RunFigures::*figure) {
  Bars bars{.values = std::move(axis), .guide = {}, .guide_name = "", .panels = {}};
  for (const CellGroup& group : s.panels()) {
    Bars::Panel panel{.title = group.name, .bars = {}};
    for (size_t c = 0; c < group.cells.size(); ++c)
      if (const CellSummary& cell = *group.cells[c]; cell.any_ok())
        panel.bars.push_back({.name = group.names[c],
                              .value = value_of(cell.spread(figure)),
                              .thing = cell.cell.fixed_gamma() ? "fixed length" : "a policy chooses",
                              .parts = {}});
    bars.panels.push_back(std::move(panel));
  }
  return {title, text, std::move(bars)};
}

Figure regret_figure(const StudySummary& s) {
  Bars bars{.values = {.label = "tokens/s lost against the best fixed length", .unit = "%", .names = {}},
            .guide = {},
            .guide_name = "",
            .panels = {}};
  for (const CellGroup& group : s.groups()) {
    Bars::Panel panel{.title = group.name, .bars = {}};
    for (size_t c = 0; c < group.cells.size(); ++c)
      if (const auto regret = group.regret(*group.cells[c]); regret && group.cells.size() > 1)
        panel.bars.push_back(
            {.name = group.names[c],
             .value = {100 * regret->value, 100 * regret->low, 100 * regret->high},
             .thing = group.cells[c]->cell.fixed_gamma() ? "fixed length" : "a policy chooses",
             .parts = {}});
    bars.panels.push_back(std::move(panel));
  }
  return {"Regret against the best fixed length",
          "Of ratios taken repeat by repeat, against the fixed length that was best in hindsight; below 0: "
          "faster than all of them. Whiskers: 95 % interval of the bootstrap over repeats.",
          std::move(bars)};
}

// One line per choice of everything else.
Figure axis_figure(const StudySummary& s, double RunFigures::*figure, const char* title, report::Axis y,
                   std::optional<double> guide) {
  const std::string& key = s.study.x_axis;
  Plot plot{.x = {.label = key, .unit = "", .names = {}},
            .y = std::move(y),
            .guide = guide,
            .guide_name = guide ? "plain" : "",
            .panels = {{}}};
  std::vector<const Cell*> cells;
  for (const CellSummary& cell : s.cells) cells.push_back(&cell.cell);
  const auto names = short_names(cells, NamedBy::kAll, key);
  auto& lines = plot.panels[0].series;
  for (size_t c = 0; c < s.cells.size(); ++c) {
    const auto value = cells[c]->values.find(key);
    const Spread spread = s.cells[c].spread(figure);
    if (value == cells[c]->values.end() || spread.median <= 0) continue;
    auto at = std::find(plot.x.names.begin(), plot.x.names.end(), value->second);
    if (at == plot.x.names.end()) at = plot.x.names.insert(at, value->second);
    auto line = std::find_if(lines.begin(), lines.end(), [&](const Series& l) { return l.name == names[c]; });
    if (line == lines.end())
      line = lines.insert(line, {.name = names[c], .points = {}, .kind = Series::Kind::kLine, .thing = ""});
    line->points.push_back({static_cast<double>(at - plot.x.names.begin()), value_of(spread)});
  }
  return {title, "Medians over repeats; whiskers from the lowest to the highest.", std::move(plot)};
}

Figure position_figure(const StudySummary& s) {
  Plot plot{.x = {.label = "position in the draft", .unit = "", .names = {}},
            .y = {.label = "accepted, of those tested", .unit = "", .names = {}},
            .guide = {},
            .guide_name = "",
            .panels = {}};
  for (const CellGroup& group : s.panels()) {
    Plot::Panel panel{.title = group.name, .series = {}};
    for (size_t c = 0; c < group.cells.size(); ++c) {
      Series series{.name = group.names[c], .points = {}, .kind = Series::Kind::kLine, .thing = ""};
      const auto acceptance = group.cells[c]->position_acceptance();
      for (size_t i = 0; i < acceptance.size(); ++i)
        series.points.push_back({static_cast<double>(i + 1), {acceptance[i], 0, 0}});
      panel.series.push_back(std::move(series));
    }
    plot.panels.push_back(std::move(panel));
  }
  return {"Acceptance by position",
          "Of the drafts that reached the position unrejected. Late positions rest on few drafts.",
          std::move(plot)};
}

std::string panel_title(const CellGroup& group, size_t cell) {
  return group.name.empty() ? group.names[cell] : fmt::format("{}: {}", group.name, group.names[cell]);
}

Figure histogram_figure(const StudySummary& s) {
  Plot plot{.x = {.label = "draft length", .unit = "tokens", .names = {}},
            .y = {.label = "share of rounds", .unit = "%", .names = {}},
            .guide = {},
            .guide_name = "",
            .panels = {}};
  for (const CellGroup& group : s.panels())
    for (size_t c = 0; c < group.cells.size(); ++c) {
      const auto counts = group.cells[c]->gamma_histogram();
      const double sum = std::accumulate(counts.begin(), counts.end(), 0.0);
      if (group.cells[c]->cell.fixed_gamma() || sum <= 0) continue;
      Series series{.name = group.names[c], .points = {}, .kind = Series::Kind::kColumns, .thing = ""};
      for (size_t i = 0; i < counts.size(); ++i)
        series.points.push_back({static_cast<double>(i), {100 * counts[i] / sum, 0, 0}});
      plot.panels.push_back({panel_title(group, c), {std::move(series)}});
    }
  return {"How often each length was chosen", "Of the policies that choose; rounds of all repeats.",
          std::move(plot)};
}

// Every round's length, and their mean over a window.
void add_lengths(const std::string& title, const std::string& name, const Timeline& timeline, Plot* plot) {
  constexpr size_t kMaxDots = 300, kWindows = 40;
  std::vector<const TimedRound*> rounds;
  for (const TimedRound& round : timeline.rounds)
    if (!round.first) rounds.push_back(&round);
  if (rounds.empty()) return;
  const size_t every = rounds.size() / kMaxDots + 1, window = std::max<size_t>(1, rounds.size() / kWindows);
  Series dots{.name = "one round", .points = {}, .kind = Series::Kind::kCloud, .thing = name};
  Series mean{.name = "mean of neighbouring rounds",
              .points = {},
              .kind = Series::Kind::kCurve,
              .thing = "mean of rounds"};
  for (size_t i = 0; i < rounds.size(); i += every)
    dots.points.push_back({rounds[i]->end_ms * 1e-3, {static_cast<double>(rounds[i]->drafted), 0, 0}});
  for (size_t i = 0; i + window <= rounds.size(); i += window) {
    double sum = 0;
    for (size_t j = i; j < i + window; ++j) sum += rounds[j]->drafted;
    mean.points.push_back({rounds[i + window / 2]->end_ms * 1e-3, {sum / static_cast<double>(window), 0, 0}});
  }
  plot->panels.push_back({title, {std::move(dots), std::move(mean)}});
}

Figure chosen_figure(const StudySummary& s) {
  Plot plot{.x = {.label = "time since the first round", .unit = "s", .names = {}},
            .y = {.label = "draft length chosen", .unit = "tokens", .names = {}},
            .guide = {},
            .guide_name = "",
            .panels = {}};
  for (const CellGroup& group : s.panels())
    for (size_t c = 0; c < group.cells.size(); ++c)
      if (!group.cells[c]->cell.fixed_gamma())
        add_lengths(panel_title(group, c), group.names[c], group.cells[c]->timeline, &plot);
  return {"Chosen lengths over time", "Of one run of each cell: dots are rounds.", std::move(plot)};
}

}  // namespace

report::Section axis_section(const StudySummary& s) {
  report::Section section{"Over the swept axis", "", {}};
  if (s.study.x_axis.empty()) return section;
  section.parts = {
      axis_figure(s, &RunFigures::tokens_per_second, "Speed",
                  {.label = "speed", .unit = "tokens/s", .names = {}}, std::nullopt),
      axis_figure(s, &RunFigures::speedup, "Speed-up", {.label = kSpeedup, .unit = "", .names = {}}, 1)};
  return section;
}

report::Section speed_section(const StudySummary& s) {
  return {"Speed",
          "",
          {speedup_figure(s),
           bars_figure(s, "Tokens per second", "Medians over repeats; lines from the lowest to the highest.",
                       {.label = "speed", .unit = "tokens/s", .names = {}}, &RunFigures::tokens_per_second),
           regret_figure(s)}};
}

report::Section length_section(const StudySummary& s) {
  return {
      "Drafts",
      "",
      {histogram_figure(s), chosen_figure(s), position_figure(s),
       bars_figure(
           s, "Bytes on the wire per accepted token",
           "Sent and received by the coordinator, all messages; lines from the lowest to the highest repeat.",
           {.label = "per accepted token", .unit = "bytes", .names = {}}, &RunFigures::bytes_per_accepted)}};
}

}  // namespace outrider
