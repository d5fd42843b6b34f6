// Small multiples of who worked when.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lab/report/svg.h"

namespace outrider::report {
namespace {

constexpr double kLane = 20, kLaneBar = 15, kLanesBottom = 40, kLanesHead = 24;

struct TimeScale {
  double length_ms = 1, left = 8, right = kPanelWidth - 8;
  double x(double ms) const { return left + std::clamp(ms / length_ms, 0.0, 1.0) * (right - left); }

  static TimeScale of(const Lanes& lanes) {
    size_t names = 0, notes = 0;
    for (const Lanes::Panel& panel : lanes.panels)
      for (const Lanes::Lane& lane : panel.lanes) {
        names = std::max(names, letters_of(lane.name));
        notes = std::max(notes, letters_of(lane.note));
      }
    return {.length_ms = lanes.length_ms,
            .left = 12 + kLetter * static_cast<double>(names),
            .right = kPanelWidth - 12 - kLetter * static_cast<double>(notes)};
  }
};

std::string lane_at(double y, const Lanes::Lane& lane, const TimeScale& s, const Palette& palette) {
  std::string out = text_at(s.left - 6, y + 12, Anchor::kEnd, lane.name, "soft");
  out += rect_at(s.left, y, s.right - s.left, kLaneBar, "lane");
  for (const Lanes::Span& span : lane.spans) {
    const double begin = s.x(span.begin_ms), end = s.x(span.end_ms);
    if (end > begin)
      out += rect_at(begin, y, std::max(0.6, end - begin - 0.3), kLaneBar, colour_class(palette[span.thing]),
                     fmt::format("{}\n{} ms, from {} ms on", span.thing,
                                 short_number(span.end_ms - span.begin_ms), short_number(span.begin_ms)));
  }
  return out + text_at(s.right + 5, y + 12, Anchor::kStart, lane.note, "soft");
}

std::string time_axis(const TimeScale& s, double top, double bottom) {
  std::string out;
  const double step = step_of(s.length_ms, 4);
  for (int i = 0; i * step <= s.length_ms * 1.0001; ++i) {
    out += line_at(s.x(i * step), top, s.x(i * step), bottom, "grid");
    out += text_at(s.x(i * step), bottom + 13, Anchor::kMiddle, fmt::format("{:.4g}", i * step), "soft");
  }
  return out + text_at((s.left + s.right) / 2, bottom + 30, Anchor::kMiddle, "time, ms", "soft");
}

}  // namespace

Drawn draw(const Lanes& lanes, const Palette& palette) {
  Drawn out;
  if (lanes.length_ms <= 0) return out;
  const TimeScale s = TimeScale::of(lanes);
  std::set<std::string> things;
  for (const Lanes::Panel& panel : lanes.panels) {
    if (panel.lanes.empty()) continue;
    const double top = panel.title.empty() ? 6 : kLanesHead;
    const double bottom = top + kLane * static_cast<double>(panel.lanes.size());
    std::string svg = open_panel(bottom + kLanesBottom, panel.title + ": which role works when");
    if (!panel.title.empty()) svg += text_at(4, 14, Anchor::kStart, shortened(panel.title, 48), "title");
    svg += time_axis(s, top - 2, bottom);
    double y = top;
    for (const Lanes::Lane& lane : panel.lanes) {
      svg += lane_at(y, lane, s, palette);
      y += kLane;
      for (const Lanes::Span& span : lane.spans)
        if (things.insert(span.thing).second)
          out.legend.push_back({span.thing, legend_square(palette[span.thing])});
    }
    out.panels.push_back(svg + "</svg>\n");
  }
  return out;
}

}  // namespace outrider::report
