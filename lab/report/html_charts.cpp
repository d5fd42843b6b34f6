// Figures over draft length, position and the swept x-axis.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/report/html_parts.h"

namespace outrider {
namespace {

Point point_of(double x, const Spread& spread) {
  return {.x = x, .y = spread.median, .low = spread.low, .high = spread.high};
}

Series theory_of(const CellGroup& group, double most) {
  Series theory{.name = "theory: lockstep, i.i.d. acceptance",
                .points = {},
                .kind = Series::Kind::kDashed,
                .colour = 6};
  for (int gamma = 1; gamma <= most; ++gamma)
    if (const double speedup = group.theory(gamma); speedup > 0)
      theory.points.push_back({.x = static_cast<double>(gamma), .y = speedup});
  return theory;
}

// Measured fixed lengths, theory through them, and each adaptive policy at the mean length it chose.
Chart speedup_chart(const CellGroup& group) {
  Chart chart{.title = group.name,
              .x_label = "draft length gamma",
              .y_label = "speed-up over plain decoding",
              .series = {},
              .guide = 1,
              .x_names = {}};
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
  if (!fixed.points.empty()) chart.series.push_back(std::move(fixed));
  if (Series theory = theory_of(group, most); !theory.points.empty())
    chart.series.push_back(std::move(theory));
  for (Series& policy : policies) chart.series.push_back(std::move(policy));
  return chart;
}

Chart position_chart(const CellGroup& group) {
  Chart chart{.title = group.name,
              .x_label = "position in the draft",
              .y_label = "accepted, of those tested",
              .series = {},
              .x_names = {}};
  for (size_t c = 0; c < group.cells.size(); ++c) {
    Series series{.name = group.names[c], .points = {}, .colour = static_cast<int>(c)};
    const auto acceptance = group.cells[c]->position_acceptance();
    for (size_t i = 0; i < acceptance.size(); ++i)
      series.points.push_back({.x = static_cast<double>(i + 1), .y = acceptance[i]});
    if (!series.points.empty()) chart.series.push_back(std::move(series));
  }
  return chart;
}

// One line per choice of everything else.
std::string x_axis_chart(const StudySummary& summary, double RunFigures::*figure, const char* y_label,
                         double guide) {
  const std::string& key = summary.study.x_axis;
  Chart chart{.title = "", .x_label = key, .y_label = y_label, .series = {}, .guide = guide, .x_names = {}};
  for (const CellSummary& cell : summary.cells) {
    const auto value = cell.cell.values.find(key);
    if (value == cell.cell.values.end()) continue;
    auto at = std::find(chart.x_names.begin(), chart.x_names.end(), value->second);
    if (at == chart.x_names.end()) at = chart.x_names.insert(at, value->second);
    const auto x = static_cast<double>(at - chart.x_names.begin());
    const std::string name = cell.cell.label_without(key);
    auto series = std::find_if(chart.series.begin(), chart.series.end(),
                               [&](const Series& s) { return s.name == name; });
    if (series == chart.series.end())
      series = chart.series.insert(
          series, {.name = name, .points = {}, .colour = static_cast<int>(chart.series.size())});
    if (const Spread spread = cell.spread(figure); spread.median > 0)
      series->points.push_back(point_of(x, spread));
  }
  return svg_chart(chart);
}

// Every round's length, and their mean over a window.
Chart length_chart(const std::string& title, const Timeline& timeline, int colour) {
  constexpr size_t kMostDots = 1200;
  std::vector<const TimedRound*> rounds;
  for (const TimedRound& round : timeline.rounds)
    if (!round.first) rounds.push_back(&round);
  Chart chart{.title = title,
              .x_label = "seconds since the first round",
              .y_label = "draft length chosen",
              .series = {},
              .x_names = {}};
  if (rounds.empty()) return chart;
  const size_t every = rounds.size() / kMostDots + 1, window = std::max<size_t>(1, rounds.size() / 40);
  Series dots{.name = "one round", .points = {}, .kind = Series::Kind::kCloud, .colour = colour};
  Series mean{.name = fmt::format("mean of {} rounds", window),
              .points = {},
              .kind = Series::Kind::kCurve,
              .colour = 6};
  for (size_t i = 0; i < rounds.size(); i += every)
    dots.points.push_back({.x = rounds[i]->end_ms * 1e-3, .y = static_cast<double>(rounds[i]->drafted)});
  for (size_t i = 0; i + window <= rounds.size(); i += window) {
    double sum = 0;
    for (size_t j = i; j < i + window; ++j) sum += rounds[j]->drafted;
    mean.points.push_back(
        {.x = rounds[i + window / 2]->end_ms * 1e-3, .y = sum / static_cast<double>(window)});
  }
  chart.series = {std::move(dots), std::move(mean)};
  return chart;
}

// A curve over draft length needs lengths.
bool has_lengths(const CellGroup& group) {
  return std::count_if(group.cells.begin(), group.cells.end(),
                       [](const CellSummary* cell) { return cell->cell.fixed_gamma().has_value(); }) >= 2;
}

}  // namespace

std::string section(const char* heading, const std::string& explanation, const std::string& drawn) {
  if (drawn.empty()) return "";
  return fmt::format("<section>\n<h2>{}</h2>\n<p>{}</p>\n<div>\n{}</div>\n</section>\n", heading, explanation,
                     drawn);
}

std::string x_axis_section(const StudySummary& s) {
  if (s.study.x_axis.empty()) return "";
  return section("Over the swept axis",
                 fmt::format("By <b>{}</b>; a line for each of the other choices.", escaped(s.study.x_axis)),
                 x_axis_chart(s, &RunFigures::tokens_per_second, "tokens/s", -1) +
                     x_axis_chart(s, &RunFigures::speedup, "speed-up over plain decoding", 1));
}

std::string speedup_section(const StudySummary& s) {
  std::string drawn;
  for (const CellGroup& group : s.groups())
    if (has_lengths(group)) drawn += svg_chart(speedup_chart(group));
  return section("Speed-up against draft length",
                 "Over plain decoding in the same process. The theory takes the group's median acceptance, "
                 "draft, verification and exchange times; it knows one sequence in lockstep. Below the line "
                 "at 1 nothing is gained.",
                 drawn);
}

std::string position_section(const StudySummary& s) {
  std::string drawn;
  for (const CellGroup& group : s.panels()) drawn += svg_chart(position_chart(group));
  return section("Acceptance by position",
                 "Of the drafts that reached the position unrejected. Late positions rest on few drafts.",
                 drawn);
}

std::string length_section(const StudySummary& s) {
  std::string drawn;
  for (const CellGroup& group : s.panels()) {
    std::string histograms, lines;
    for (size_t c = 0; c < group.cells.size(); ++c) {
      const CellSummary& cell = *group.cells[c];
      if (cell.cell.fixed_gamma()) continue;
      const auto colour = static_cast<int>(c);
      histograms += svg_histogram(group.names[c], cell.gamma_histogram(), colour);
      lines += svg_chart(length_chart(group.names[c], cell.timeline, colour));
    }
    if (!histograms.empty() || !lines.empty())
      drawn += fmt::format("<h3>{}</h3>\n{}\n{}", escaped(group.name), histograms, lines);
  }
  return section("Chosen draft lengths",
                 "Of the policies that choose: the share of rounds by length over all repeats, and the "
                 "lengths over the time of one run.",
                 drawn);
}

}  // namespace outrider
