#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lab/report/svg.h"
#include "lab/report/svg_parts.h"

namespace outrider {
namespace {

constexpr double kWidth = 560, kHeight = 320, kLeft = 56, kRight = 16, kTop = 46, kBottom = 44, kLegend = 17;
constexpr size_t kColumns = 2, kColumnCharacters = 36;  // of a legend

// Where colours come round again, lines are dotted.
const char* dash_of(const Series& series) {
  if (series.kind == Series::Kind::kDashed) return " stroke-dasharray=\"5 4\"";
  return series.colour < 7 ? "" : " stroke-dasharray=\"2 3\"";
}

bool has_line(const Series& series) {
  return series.kind != Series::Kind::kMarks && series.kind != Series::Kind::kCloud;
}

// Data to pixels; axes from 0.
struct Scale {
  double x_most, y_most, x_from;
  double x(double value) const { return x_from + value / x_most * (kWidth - kRight - x_from); }
  double y(double value) const { return kHeight - kBottom - value / y_most * (kHeight - kBottom - kTop); }
};

Scale scale_of(const Chart& chart) {
  Scale scale{0, std::max(chart.guide, 0.0), kLeft};
  for (const Series& series : chart.series)
    for (const Point& p : series.points) {
      scale.x_most = std::max(scale.x_most, p.x);
      scale.y_most = std::max({scale.y_most, p.y, p.high});
    }
  if (scale.x_most <= 0) scale.x_most = 1;
  const double step = step_of(scale.y_most);
  scale.y_most = std::max(step, std::ceil(scale.y_most / step - 1e-9) * step);
  scale.x_most *= 1.03;
  if (!chart.x_names.empty()) {  // half a step of room at either end
    const double room = (kWidth - kRight - kLeft) / static_cast<double>(chart.x_names.size());
    scale.x_from = kLeft + room / 2;
    scale.x_most = static_cast<double>(chart.x_names.size()) - 0.5;
  }
  return scale;
}

std::string x_ticks(const Chart& chart, const Scale& s) {
  std::string out;
  const double y = kHeight - kBottom + 16;
  const size_t names = chart.x_names.size();
  for (size_t i = 0; i < names; ++i) {
    const auto room = static_cast<size_t>((kWidth - kLeft) / static_cast<double>(names) / 6);
    out += text_at(s.x(static_cast<double>(i)), y, "middle",
                   shortened(chart.x_names[i], std::max<size_t>(room, 4)));
  }
  if (names > 0) return out;
  const bool counts = s.x_most >= 2;  // lengths and positions: no ticks between whole numbers
  const double step = counts ? std::max(1.0, step_of(s.x_most)) : step_of(s.x_most);
  for (int i = 0; i * step <= s.x_most; ++i)
    out += text_at(s.x(i * step), y, "middle", fmt::format("{:.4g}", i * step));
  return out;
}

std::string axes(const Chart& chart, const Scale& s) {
  std::string out;
  const double step = step_of(s.y_most);
  for (int i = 0; i * step <= s.y_most * 1.0001; ++i) {
    const double value = i * step;
    out += line_at(kLeft, s.y(value), kWidth - kRight, s.y(value), "#e4e7eb", 1);
    out += text_at(kLeft - 6, s.y(value) + 4, "end", fmt::format("{:.4g}", value), " class=\"tick\"");
  }
  out += x_ticks(chart, s);
  out += line_at(kLeft, s.y(0), kWidth - kRight, s.y(0), "#52606d", 1);
  if (chart.guide >= 0)
    out += line_at(kLeft, s.y(chart.guide), kWidth - kRight, s.y(chart.guide), "#7b8794", 1.5);
  out += text_at((kLeft + kWidth) / 2, kHeight - 8, "middle", chart.x_label, " class=\"tick\"");
  return out + text_at(4, 32, "start", chart.y_label, " class=\"tick\"");
}

std::string curve(const Series& series, const Scale& s) {
  std::string points;
  for (const Point& p : series.points) points += fmt::format("{:.1f},{:.1f} ", s.x(p.x), s.y(p.y));
  return fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\"{}/>\n", points,
                     colour_of(series.colour), dash_of(series));
}

std::string diamond(double x, double y, const char* colour) {
  return fmt::format(
      "<polygon points=\"{0:.1f},{2:.1f} {3:.1f},{1:.1f} {0:.1f},{4:.1f} {5:.1f},{1:.1f}\" fill=\"{6}\" "
      "stroke=\"#fff\"/>\n",
      x, y, y - 7, x + 7, y + 7, x - 7, colour);
}

std::string mark(const Series& series, double x, double y) {
  const char* colour = colour_of(series.colour);
  if (series.kind == Series::Kind::kMarks) return diamond(x, y, colour);
  const bool cloud = series.kind == Series::Kind::kCloud;
  return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\"{}/>\n", x, y, cloud ? 2 : 3.5,
                     colour, cloud ? " fill-opacity=\".35\"" : "");
}

std::string marks(const Series& series, const Scale& s) {
  if (series.kind == Series::Kind::kDashed || series.kind == Series::Kind::kCurve) return "";
  std::string out;
  for (const Point& p : series.points) {
    if (p.low < p.high)
      out += line_at(s.x(p.x), s.y(p.low), s.x(p.x), s.y(p.high), colour_of(series.colour), 1.2);
    out += mark(series, s.x(p.x), s.y(p.y));
  }
  return out;
}

size_t legend_columns(const Chart& chart) {
  const bool fits = std::all_of(chart.series.begin(), chart.series.end(),
                                [](const Series& series) { return series.name.size() <= kColumnCharacters; });
  return fits && chart.series.size() > 3 ? kColumns : 1;
}

std::string legend(const Chart& chart) {
  std::string out;
  const size_t columns = legend_columns(chart);
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const Series& series = chart.series[i];
    const double x = kLeft + static_cast<double>(i % columns) * (kWidth - kLeft) / kColumns;
    const double y = kHeight + 12 + kLegend * static_cast<double>(i / columns);
    out += has_line(series) ? line_at(x, y - 4, x + 24, y - 4, colour_of(series.colour), 2, dash_of(series))
                            : mark(series, x + 12, y - 4);
    out += text_at(x + 32, y, "start", shortened(series.name, columns > 1 ? kColumnCharacters : 76));
  }
  return out;
}

}  // namespace

std::string svg_chart(const Chart& chart) {
  const bool empty = std::all_of(chart.series.begin(), chart.series.end(),
                                 [](const Series& series) { return series.points.empty(); });
  if (empty) return "";
  const Scale scale = scale_of(chart);
  const size_t columns = legend_columns(chart);
  const auto lines = static_cast<double>((chart.series.size() + columns - 1) / columns);
  std::string out = open_svg(kWidth, kHeight + kLegend * lines + 6, chart.title);
  out += axes(chart, scale);
  for (const Series& series : chart.series) {
    if (has_line(series)) out += curve(series, scale);
    out += marks(series, scale);
  }
  return out + legend(chart) + "</svg>\n";
}

}  // namespace outrider
