#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "lab/report/svg.h"
#include "lab/report/svg_parts.h"

namespace outrider {

std::string svg_bars(const std::string& title, const std::vector<Bar>& bars, const std::string& unit) {
  if (bars.empty()) return "";
  constexpr double kTop = 30, kRow = 20, kNames = 300, kWidth = 1160, kValues = 90;
  double least = 0, most = 1e-12;
  for (const Bar& bar : bars) {
    const bool whisker = bar.low < bar.high;
    least = std::min({least, bar.value, whisker ? bar.low : 0});
    most = std::max({most, bar.value, whisker ? bar.high : 0});
  }
  const double from = kNames + (least < 0 ? kValues : 0);  // values are written outside their bars
  const auto x = [&](double value) {
    return from + (value - least) / (most - least) * (kWidth - from - kValues);
  };
  std::string out = open_svg(kWidth, kTop + kRow * static_cast<double>(bars.size()) + 6, title);
  double y = kTop;
  for (const Bar& bar : bars) {
    const double left = std::min(x(0), x(bar.value)), right = std::max(x(0), x(bar.value));
    out += text_at(kNames - 6, y + 12, "end", shortened(bar.name, 48));
    out += rect_at(left, y, right - left, 14, colour_of(bar.colour));
    const bool whisker = bar.low < bar.high;
    if (whisker) out += line_at(x(bar.low), y + 7, x(bar.high), y + 7, "#222", 1.5);
    const std::string text = fmt::format("{:.4g}{}", bar.value, unit);
    out += bar.value < 0
               ? text_at(x(whisker ? bar.low : bar.value) - 6, y + 12, "end", text)
               : text_at(x(whisker ? std::max(bar.high, bar.value) : bar.value) + 6, y + 12, "start", text);
    y += kRow;
  }
  out += line_at(x(0), kTop - 3, x(0), y - 3, "#52606d", 1);
  return out + "</svg>\n";
}

std::string svg_histogram(const std::string& title, const std::vector<double>& counts, int colour) {
  const double sum = std::accumulate(counts.begin(), counts.end(), 0.0);
  if (sum <= 0) return "";
  constexpr double kWidth = 276, kHeight = 130, kBase = 112, kRoom = 74;
  const double most = *std::max_element(counts.begin(), counts.end()) / sum;
  const double column = (kWidth - 12) / static_cast<double>(counts.size());
  const size_t every = counts.size() / 12 + 1;  // labels that do not touch
  std::string out = open_svg(kWidth, kHeight, title);
  for (size_t i = 0; i < counts.size(); ++i) {
    const double share = counts[i] / sum, height = share / most * kRoom;
    const double x = 6 + column * static_cast<double>(i);
    out += rect_at(x, kBase - height, std::max(1.0, column - 2), height, colour_of(colour));
    if (i % every == 0) out += text_at(x + column / 2, kBase + 14, "middle", fmt::format("{}", i));
    if (share == most)
      out += text_at(x + column / 2, kBase - height - 3, "middle", fmt::format("{:.0f} %", 100 * share));
  }
  return out + line_at(6, kBase, kWidth - 6, kBase, "#52606d", 1) + "</svg>\n";
}

}  // namespace outrider
