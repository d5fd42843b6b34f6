#include <fmt/format.h>

#include <algorithm>

#include "lab/report/svg.h"
#include "lab/report/svg_parts.h"

namespace outrider {
namespace {

constexpr double kWidth = 1160, kNames = 236, kLaneNames = 60, kNotes = 96, kTop = 30, kLane = 18, kGap = 10;
constexpr double kFrom = kNames + kLaneNames, kTo = kWidth - kNotes;

std::string lane(const Lane& lane, double y, double length_ms) {
  std::string out = text_at(kFrom - 6, y + 12, "end", lane.name, " class=\"tick\"");
  out += rect_at(kFrom, y, kTo - kFrom, kLane - 4, "#eef1f4");
  for (const Lane::Span& span : lane.spans) {
    const double begin = std::clamp(span.begin_ms / length_ms, 0.0, 1.0) * (kTo - kFrom);
    const double end = std::clamp(span.end_ms / length_ms, 0.0, 1.0) * (kTo - kFrom);
    if (end > begin)
      out += rect_at(kFrom + begin, y, std::max(0.8, end - begin - 0.4), kLane - 4, colour_of(span.colour));
  }
  return out + text_at(kTo + 8, y + 12, "start", lane.note);
}

std::string time_axis(double y, double length_ms) {
  std::string out;
  const double step = step_of(length_ms);
  for (int i = 0; i * step <= length_ms * 1.0001; ++i) {
    const double x = kFrom + i * step / length_ms * (kTo - kFrom);
    out += line_at(x, kTop - 4, x, y, "#cbd2d9", 0.7);
    out += text_at(x, y + 12, "middle", fmt::format("{:.4g}", i * step), " class=\"tick\"");
  }
  return out + text_at(kTo + 8, y + 12, "start", "ms", " class=\"tick\"");
}

}  // namespace

std::string svg_gantt(const std::string& title, double length_ms, const std::vector<GanttRow>& rows) {
  if (rows.empty() || length_ms <= 0) return "";
  double height = kTop;
  for (const GanttRow& row : rows) height += kLane * static_cast<double>(row.lanes.size()) + kGap;
  std::string out = open_svg(kWidth, height + 20, title), axis = time_axis(height - 4, length_ms);
  double y = kTop;
  for (const GanttRow& row : rows) {
    out += text_at(4, y + 12, "start", shortened(row.name, 38));
    for (const Lane& each : row.lanes) {
      out += lane(each, y, length_ms);
      y += kLane;
    }
    y += kGap;
  }
  return out + axis + "</svg>\n";
}

}  // namespace outrider
