// Small multiples of named values.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lab/report/svg.h"

namespace outrider::report {
namespace {

constexpr double kRow = 22, kBar = 14, kNameAbove = 16, kBottom = 42, kHead = 24, kRight = 14;
constexpr size_t kLettersBeside = 22;  // longer names stand above their bars

double sum_of(const Bars::Bar& bar) {
  if (bar.parts.empty()) return bar.value.value;
  double sum = 0;
  for (const Bars::Part& part : bar.parts) sum += part.value;
  return sum;
}

// The scale that all panels of a figure share.
struct Scale {
  double least = 0, most = 0, step = 1, names_end = 0, left = 8, right = 0;
  bool above = false;

  static Scale of(const Bars& bars) {
    Scale s;
    s.most = bars.guide.value_or(0);
    size_t letters = 0, digits = 1;
    for (const Bars::Panel& panel : bars.panels)
      for (const Bars::Bar& bar : panel.bars) {
        const double value = sum_of(bar);
        const bool whisker = bar.value.has_interval();
        s.least = std::min({s.least, value, whisker ? bar.value.low : 0});
        s.most = std::max({s.most, value, whisker ? bar.value.high : 0});
        letters = std::max(letters, letters_of(bar.name));
        digits = std::max(digits, short_number(value).size());
      }
    if (s.most <= s.least) s.most = s.least + 1;
    s.step = step_of(s.most - s.least, 4);
    s.above = letters > kLettersBeside;
    const double values = 8 + kLetter * static_cast<double>(digits);               // stand outside their bars
    s.names_end = s.above ? 2 : 6 + 1.2 * kLetter * static_cast<double>(letters);  // m is wide
    s.left = s.names_end + 6 + (s.least < 0 ? values : 0);
    s.right = kPanelWidth - kRight - values;
    return s;
  }
  double x(double value) const { return left + (value - least) / (most - least) * (right - left); }
  double row() const { return above ? kRow + kNameAbove : kRow; }
};

std::string bar_at(double y, const Bars& bars, const Bars::Bar& bar, const Scale& s, const Palette& palette) {
  const double sum = sum_of(bar), value_left = std::min(s.x(0), s.x(sum));
  const Value value = bar.parts.empty() ? bar.value : Value{sum, 0, 0};
  std::string out;
  if (s.above)
    out += text_at(8, y + 11, Anchor::kStart, shortened(bar.name, 52));
  else
    out += text_at(s.names_end, y + 11, Anchor::kEnd, bar.name);
  if (s.above) y += kNameAbove;
  double begin = 0;
  for (const Bars::Part& part : bar.parts) {
    const double left = s.x(begin), width = s.x(begin + part.value) - left;
    begin += part.value;
    if (width > 0)
      out += rect_at(
          left, y, std::max(0.5, width - 0.5), kBar, colour_class(palette[part.thing]),
          fmt::format("{}\n{}: {}", bar.name, part.thing, value_text({part.value, 0, 0}, bars.values.unit)));
  }
  if (bar.parts.empty())
    out += rect_at(
        value_left, y, std::max(0.5, std::abs(s.x(sum) - s.x(0))), kBar, colour_class(palette[bar.thing]),
        fmt::format("{}\n{}: {}", bar.name, bars.values.label, value_text(value, bars.values.unit)));
  double left_end = value_left, right_end = std::max(s.x(0), s.x(sum));
  if (value.has_interval()) {
    out += line_at(s.x(value.low), y + kBar / 2, s.x(value.high), y + kBar / 2, "interval");
    left_end = std::min(left_end, s.x(value.low)), right_end = std::max(right_end, s.x(value.high));
  }
  return out + (sum < 0 ? text_at(left_end - 5, y + 11, Anchor::kEnd, short_number(sum))
                        : text_at(right_end + 5, y + 11, Anchor::kStart, short_number(sum)));
}

std::string axis(const Bars& bars, const Scale& s, double top, double bottom) {
  std::string out;
  const auto first = static_cast<int>(std::ceil(s.least / s.step - 1e-9));
  for (int i = first; i * s.step <= s.most * 1.0001; ++i) {
    out += line_at(s.x(i * s.step), top, s.x(i * s.step), bottom, i == 0 ? "axis" : "grid");
    out += text_at(s.x(i * s.step), bottom + 14, Anchor::kMiddle, fmt::format("{:.4g}", i * s.step), "soft");
  }
  if (bars.guide) out += line_at(s.x(*bars.guide), top, s.x(*bars.guide), bottom, "guide");
  const std::string guide =
      bars.guide && !bars.guide_name.empty() ? fmt::format("; line: {}", bars.guide_name) : "";
  return out + text_at(kPanelWidth / 2, bottom + 32, Anchor::kMiddle,
                       shortened(axis_title(bars.values) + guide, 52), "soft");
}

}  // namespace

Drawn draw(const Bars& bars, const Palette& palette) {
  Drawn out;
  const Scale s = Scale::of(bars);
  std::set<std::string> things;
  for (const Bars::Panel& panel : bars.panels) {
    if (panel.bars.empty()) continue;
    const double top = panel.title.empty() ? 6 : kHead;
    const double bottom = top + s.row() * static_cast<double>(panel.bars.size());
    std::string svg =
        open_panel(bottom + kBottom, panel.title.empty() ? axis_title(bars.values)
                                                         : panel.title + ": " + axis_title(bars.values));
    if (!panel.title.empty()) svg += text_at(4, 14, Anchor::kStart, shortened(panel.title, 48), "title");
    svg += axis(bars, s, top - 2, bottom);
    double y = top;
    for (const Bars::Bar& bar : panel.bars) {
      svg += bar_at(y, bars, bar, s, palette);
      y += s.row();
      for (const Bars::Part& part : bar.parts)
        if (things.insert(part.thing).second)
          out.legend.push_back({part.thing, legend_square(palette[part.thing])});
      if (bar.parts.empty() && !bar.thing.empty() && things.insert(bar.thing).second)
        out.legend.push_back({bar.thing, legend_square(palette[bar.thing])});
    }
    out.panels.push_back(svg + "</svg>\n");
  }
  return out;
}

}  // namespace outrider::report
