// Small multiples of y over x.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "lab/report/svg.h"

namespace outrider::report {
namespace {

using Kind = Series::Kind;

constexpr double kPlotHeight = 168, kPlotRight = 14, kPlotBottom = 42, kPlotHead = 18;
constexpr size_t kMostLines = 6;  // in one panel

bool is_line(const Series& series) { return series.kind == Kind::kLine || series.kind == Kind::kCurve; }

// One that is looked at, in front of what it is compared with.
struct Layered {
  std::string title;
  std::vector<const Series*> behind, front;
};

std::vector<Layered> layered(const Plot& plot, bool* spread) {
  std::vector<Layered> out;
  for (const Plot::Panel& panel : plot.panels) {
    std::vector<const Series*> lines, others;
    for (const Series& series : panel.series)
      if (!series.points.empty()) (is_line(series) ? lines : others).push_back(&series);
    if (lines.empty() && others.empty()) continue;
    if (lines.size() <= kMostLines) {
      Layered whole{panel.title, {}, others};
      whole.front.insert(whole.front.end(), lines.begin(), lines.end());
      out.push_back(std::move(whole));
      continue;
    }
    *spread = true;
    for (const Series* line : lines) {
      Layered one{panel.title.empty() ? line->name : fmt::format("{}: {}", panel.title, line->name), lines,
                  others};
      std::erase(one.behind, line);
      one.front.push_back(line);
      out.push_back(std::move(one));
    }
  }
  return out;
}

// Data to units of the panel, the same for all panels of a figure.
struct PlotScale {
  double x_least = 0, x_most = 0, y_most = 0, y_step = 1, left = 0;
  double x(double value) const {
    return left + (value - x_least) / (x_most - x_least) * (kPanelWidth - kPlotRight - left);
  }
  double height(double value) const { return value / y_most * kPlotHeight; }

  static PlotScale of(const Plot& plot) {
    PlotScale s;
    s.y_most = std::max(plot.guide.value_or(0), 0.0);
    bool columns = !plot.x.names.empty();
    for (const Plot::Panel& panel : plot.panels)
      for (const Series& series : panel.series) {
        columns |= series.kind == Kind::kColumns;
        for (const Point& p : series.points) {
          s.x_most = std::max(s.x_most, p.x);
          s.y_most = std::max({s.y_most, p.y.value, p.y.high});
        }
      }
    if (s.y_most <= 0) s.y_most = 1;
    s.y_step = step_of(s.y_most);
    s.y_most = std::max(1.0, std::ceil(s.y_most / s.y_step - 1e-9)) * s.y_step;
    if (columns) {
      s.x_least = -0.5;
      s.x_most = std::max(s.x_most, static_cast<double>(plot.x.names.size()) - 1) + 0.5;
    } else {
      s.x_most = s.x_most > 0 ? s.x_most * 1.03 : 1;
    }
    size_t letters = 1;
    for (int i = 0; i * s.y_step <= s.y_most * 1.0001; ++i)
      letters = std::max(letters, fmt::format("{:.4g}", i * s.y_step).size());
    s.left = 12 + kLetter * static_cast<double>(letters);
    return s;
  }
};

class PanelDrawing {
 public:
  PanelDrawing(const Plot& plot, const PlotScale& scale, const Palette& palette)
      : plot_(plot), s_(scale), palette_(palette) {}

  std::string draw(const Layered& panel) {
    top_ = (panel.title.empty() ? 0 : kPlotHead) + kPlotHead + 8;
    const double height = top_ + kPlotHeight + kPlotBottom;
    std::string out =
        open_panel(height, fmt::format("{}{}{} over {}", panel.title, panel.title.empty() ? "" : ": ",
                                       axis_title(plot_.y), axis_title(plot_.x)));
    if (!panel.title.empty()) out += text_at(4, 14, Anchor::kStart, shortened(panel.title, 48), "title");
    out += axes();
    for (const Series* series : panel.behind) out += curve(*series, true);
    for (const Series* series : panel.front) {
      if (is_line(*series) || series->kind == Kind::kTheory) out += curve(*series, false);
      out += marks(*series);
    }
    return out + "</svg>\n";
  }

 private:
  double y(double value) const { return top_ + kPlotHeight - s_.height(value); }

  std::string axes() const {
    const double right = kPanelWidth - kPlotRight;
    std::string out = text_at(4, top_ - 12, Anchor::kStart, shortened(axis_title(plot_.y), 52), "soft");
    for (int i = 0; i * s_.y_step <= s_.y_most * 1.0001; ++i) {
      const double value = i * s_.y_step;
      out += line_at(s_.left, y(value), right, y(value), i == 0 ? "axis" : "grid");
      out += text_at(s_.left - 5, y(value) + 4, Anchor::kEnd, fmt::format("{:.4g}", value), "soft");
    }
    if (plot_.guide) out += guide(right);
    return out + x_ticks() +
           text_at((s_.left + right) / 2, y(0) + 34, Anchor::kMiddle, shortened(axis_title(plot_.x), 48),
                   "soft");
  }

  std::string guide(double right) const {
    const double at = y(*plot_.guide);
    std::string out = line_at(s_.left, at, right, at, "guide");
    if (!plot_.guide_name.empty()) out += text_at(right - 2, at - 4, Anchor::kEnd, plot_.guide_name, "halo");
    return out;
  }

  std::string x_ticks() const {
    std::string out;
    const size_t names = plot_.x.names.size();
    const double room =
        (kPanelWidth - kPlotRight - s_.left) / std::max<double>(1, static_cast<double>(names));
    for (size_t i = 0; i < names; ++i)
      out += text_at(s_.x(static_cast<double>(i)), y(0) + 16, Anchor::kMiddle,
                     shortened(plot_.x.names[i], std::max<size_t>(static_cast<size_t>(room / kLetter), 2)),
                     "soft");
    if (names > 0) return out;
    const bool counts = s_.x_most >= 2;  // lengths and positions: no ticks between whole numbers
    const double step = counts ? std::max(1.0, step_of(s_.x_most, 6)) : step_of(s_.x_most, 6);
    for (int i = 0; i * step <= s_.x_most; ++i)
      out += text_at(s_.x(i * step), y(0) + 16, Anchor::kMiddle, fmt::format("{:.4g}", i * step), "soft");
    return out;
  }

  std::string x_text(double x) const {
    const auto& names = plot_.x.names;
    const auto i = static_cast<size_t>(std::max(0.0, x) + 0.5);
    return names.empty() || i >= names.size() ? short_number(x) : names[i];
  }
  std::string told(const Series& series, const Point& p) const {
    return fmt::format("{}\n{}: {}\n{}: {}", series.name, plot_.y.label, value_text(p.y, plot_.y.unit),
                       plot_.x.label, x_text(p.x) + (plot_.x.unit.empty() ? "" : " " + plot_.x.unit));
  }

  std::string curve(const Series& series, bool faint) const {
    std::string points, values;
    const bool bare = series.kind != Kind::kLine && !faint;  // has no marks that tell values
    for (const Point& p : series.points) {
      points += fmt::format("{:.1f},{:.1f} ", s_.x(p.x), y(p.y.value));
      if (bare) values += fmt::format("{} {} ", short_number(p.x), short_number(p.y.value));
    }
    const std::string css = faint ? "curve faint"
                                  : fmt::format("curve {}{}", colour_class(palette_[thing_of(series)]),
                                                series.kind == Kind::kTheory ? " dashed" : "");
    std::string told;
    if (bare)
      told = fmt::format(
          " data-name=\"{}\" data-y=\"{}\" data-yu=\"{}\" data-x=\"{}\" data-xu=\"{}\" data-v=\"{}\"",
          escaped(series.name), escaped(plot_.y.label), escaped(plot_.y.unit), escaped(plot_.x.label),
          escaped(plot_.x.unit), values);
    return fmt::format("<polyline points=\"{}\" class=\"{}\"{}/>\n", points, css, told);
  }

  std::string marks(const Series& series) const {
    if (series.kind == Kind::kTheory || series.kind == Kind::kCurve) return "";
    const Look look = palette_[thing_of(series)];
    const std::string css = colour_class(look);
    std::string out;
    for (const Point& p : series.points) {
      const double px = s_.x(p.x), py = y(p.y.value);
      if (series.kind == Kind::kColumns) {
        const double half = 0.4 * (s_.x(1) - s_.x(0));
        out += rect_at(px - half, py, 2 * half, y(0) - py, css, told(series, p));
        continue;
      }
      if (p.y.has_interval()) out += line_at(px, y(p.y.low), px, y(p.y.high), ("whisker " + css).c_str());
      out +=
          series.kind == Kind::kCloud
              ? fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2\" class=\"dot {}\"/>\n", px, py, css)
              : mark_at(px, py, look, told(series, p));
    }
    return out;
  }

  const Plot& plot_;
  const PlotScale& s_;
  const Palette& palette_;
  double top_ = 0;
};

}  // namespace

Drawn draw(const Plot& plot, const Palette& palette) {
  Drawn out;
  const PlotScale scale = PlotScale::of(plot);
  PanelDrawing drawing(plot, scale, palette);
  bool spread = false;
  for (const Layered& panel : layered(plot, &spread)) out.panels.push_back(drawing.draw(panel));
  std::set<std::string> seen;
  for (const Plot::Panel& panel : plot.panels)
    for (const Series& series : panel.series)
      if (!series.points.empty() && !(spread && is_line(series)) && seen.insert(series.name).second)
        out.legend.push_back({series.name, legend_key(palette[thing_of(series)], series.kind)});
  return out;
}

}  // namespace outrider::report
