#include "launch/study/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace outrider {
namespace {

// Okabe and Ito's colours: told apart by colour-blind readers, and in print.
constexpr std::array<const char*, 7> kColours{"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                              "#b8860b", "#56b4e9", "#000000"};
// Pixels.
constexpr double kWidth = 560, kHeight = 320, kLeft = 56, kTop = 46, kBottom = 44, kLegend = 17;

const char* colour_of(int index) { return kColours[static_cast<size_t>(index) % kColours.size()]; }

// Where colours come round again, lines are dotted.
const char* dash_of(const Series& series) {
  if (series.kind == Series::Kind::kDashed) return " stroke-dasharray=\"5 4\"";
  return static_cast<size_t>(series.colour) < kColours.size() ? "" : " stroke-dasharray=\"2 3\"";
}

// 1, 2 or 5 times a power of ten: about five steps to `most`.
double step_of(double most) {
  const double rough = std::max(most, 1e-12) / 5;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (power * factor >= rough) return power * factor;
  return power * 10;
}

std::string text_at(double x, double y, const char* anchor, const std::string& text, const char* kind = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, kind,
                     escaped(text));
}

std::string line_at(double x1, double y1, double x2, double y2, const char* colour, double width) {
  return fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" stroke-width=\"{}\"/>\n",
      x1, y1, x2, y2, colour, width);
}

std::string open_svg(double width, double height, const std::string& title) {
  return fmt::format(
             "<svg width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" role=\"img\" "
             "aria-label=\"{2}\">\n",
             width, height, escaped(title)) +
         text_at(4, 16, "start", title, " font-weight=\"bold\"");
}

// Data to pixels; axes from 0.
struct Scale {
  double x_most, y_most;
  double x(double value) const { return kLeft + value / x_most * (kWidth - kLeft - 16); }
  double y(double value) const { return kHeight - kBottom - value / y_most * (kHeight - kBottom - kTop); }
};

Scale scale_of(const Chart& chart) {
  Scale scale{1, std::max(chart.guide, 0.0)};
  for (const Series& series : chart.series)
    for (const Point& p : series.points) {
      scale.x_most = std::max(scale.x_most, p.x);
      scale.y_most = std::max({scale.y_most, p.y, p.high});
    }
  const double step = step_of(scale.y_most);
  scale.y_most = std::max(step, std::ceil(scale.y_most / step - 1e-9) * step);
  scale.x_most *= 1.03;
  return scale;
}

std::string axes(const Chart& chart, const Scale& s) {
  std::string out;
  const double y_step = step_of(s.y_most), x_step = std::max(1.0, step_of(s.x_most));
  for (int i = 0; i * y_step <= s.y_most * 1.0001; ++i) {
    const double value = i * y_step;
    out += line_at(kLeft, s.y(value), kWidth - 16, s.y(value), "#e2e2e2", 1);
    out += text_at(kLeft - 6, s.y(value) + 4, "end", fmt::format("{:.4g}", value));
  }
  for (int i = 0; i * x_step <= s.x_most; ++i)
    out += text_at(s.x(i * x_step), kHeight - kBottom + 16, "middle", fmt::format("{:.4g}", i * x_step));
  out += line_at(kLeft, s.y(0), kWidth - 16, s.y(0), "#444", 1);
  if (chart.guide >= 0) out += line_at(kLeft, s.y(chart.guide), kWidth - 16, s.y(chart.guide), "#888", 1.5);
  out += text_at((kLeft + kWidth) / 2, kHeight - 8, "middle", chart.x_label);
  return out + text_at(4, 30, "start", chart.y_label, " fill=\"#555\"");
}

std::string curve(const Series& series, const Scale& s) {
  std::string points;
  for (const Point& p : series.points) points += fmt::format("{:.1f},{:.1f} ", s.x(p.x), s.y(p.y));
  const char* dash = dash_of(series);
  return fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\"{}/>\n", points,
                     colour_of(series.colour), dash);
}

std::string diamond(double x, double y, const char* colour) {
  return fmt::format(
      "<polygon points=\"{0:.1f},{2:.1f} {3:.1f},{1:.1f} {0:.1f},{4:.1f} {5:.1f},{1:.1f}\" fill=\"{6}\"/>\n",
      x, y, y - 6, x + 6, y + 6, x - 6, colour);
}

std::string marks(const Series& series, const Scale& s) {
  std::string out;
  const char* colour = colour_of(series.colour);
  for (const Point& p : series.points) {
    if (p.low < p.high) out += line_at(s.x(p.x), s.y(p.low), s.x(p.x), s.y(p.high), colour, 1.2);
    if (series.kind == Series::Kind::kMarks)
      out += diamond(s.x(p.x), s.y(p.y), colour);
    else
      out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"/>\n", s.x(p.x), s.y(p.y),
                         colour);
  }
  return out;
}

std::string legend(const Chart& chart) {
  std::string out;
  double y = kHeight + 12;
  for (const Series& series : chart.series) {
    const char* dash = dash_of(series);
    if (series.kind == Series::Kind::kMarks)
      out += diamond(kLeft + 12, y - 4, colour_of(series.colour));
    else
      out += fmt::format(
          "<line x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\" stroke=\"{}\" stroke-width=\"2\"{}/>\n",
          kLeft, y - 4, kLeft + 24, y - 4, colour_of(series.colour), dash);
    out += text_at(kLeft + 32, y, "start", series.name);
    y += kLegend;
  }
  return out;
}

}  // namespace

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else if (static_cast<unsigned char>(c) < 32 && c != '\n' && c != '\t')
      out += ' ';
    else
      out += c;
  }
  return out;
}

std::string svg_chart(const Chart& chart) {
  const bool empty = std::all_of(chart.series.begin(), chart.series.end(),
                                 [](const Series& series) { return series.points.empty(); });
  if (empty) return "";
  const Scale scale = scale_of(chart);
  std::string out =
      open_svg(kWidth, kHeight + kLegend * static_cast<double>(chart.series.size()) + 6, chart.title);
  out += axes(chart, scale);
  for (const Series& series : chart.series) {
    if (series.kind != Series::Kind::kMarks) out += curve(series, scale);
    if (series.kind != Series::Kind::kDashed) out += marks(series, scale);
  }
  return out + legend(chart) + "</svg>\n";
}

std::string svg_bars(const std::string& title, const std::vector<Bar>& bars) {
  constexpr double kRow = 20, kNames = 330, kFull = 1160, kValues = 90;
  double most = 1e-12;
  for (const Bar& bar : bars) most = std::max({most, bar.value, bar.high});
  std::string out = open_svg(kFull, kTop + kRow * static_cast<double>(bars.size()) + 6, title);
  double y = kTop;
  for (const Bar& bar : bars) {
    const auto x = [&](double value) { return kNames + value / most * (kFull - kNames - kValues); };
    out += text_at(kNames - 6, y + 12, "end", bar.name);
    out += fmt::format("<rect x=\"{}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"14\" fill=\"{}\"/>\n", kNames,
                       y, x(bar.value) - kNames, colour_of(bar.colour));
    if (bar.low < bar.high) out += line_at(x(bar.low), y + 7, x(bar.high), y + 7, "#222", 1.5);
    out += text_at(x(std::max(bar.value, bar.high)) + 6, y + 12, "start", fmt::format("{:.4g}", bar.value));
    y += kRow;
  }
  return out + "</svg>\n";
}

std::string svg_histogram(const std::string& title, const std::vector<double>& counts, int colour) {
  const double sum = std::accumulate(counts.begin(), counts.end(), 0.0);
  if (sum <= 0) return "";
  constexpr double kSmallWidth = 270, kSmallHeight = 130, kBase = 112, kRoom = 74;
  const double most = *std::max_element(counts.begin(), counts.end()) / sum;
  const double column = (kSmallWidth - 12) / static_cast<double>(counts.size());
  const size_t every = counts.size() / 12 + 1;  // labels that do not touch
  std::string out = open_svg(kSmallWidth, kSmallHeight, title);
  for (size_t i = 0; i < counts.size(); ++i) {
    const double share = counts[i] / sum, height = share / most * kRoom;
    const double x = 6 + column * static_cast<double>(i);
    out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n",
                       x, kBase - height, std::max(1.0, column - 2), height, colour_of(colour));
    if (i % every == 0) out += text_at(x + column / 2, kBase + 14, "middle", fmt::format("{}", i));
    if (share == most)
      out += text_at(x + column / 2, kBase - height - 3, "middle", fmt::format("{:.0f} %", 100 * share));
  }
  return out + "</svg>\n";
}

}  // namespace outrider
