#include "lab/report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace outrider::report {

std::string escaped(std::string_view text) {
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
    else if ((static_cast<unsigned char>(c) < 32 && c != '\n' && c != '\t') || c == 127)
      out += ' ';
    else
      out += c;
  }
  return out;
}

std::string short_number(double value) {
  if (!std::isfinite(value)) return "-";
  if (std::abs(value) >= 999.5 && std::abs(value) < 1e7) return fmt::format("{:.0f}", value);
  return fmt::format("{:.3g}", value == 0 ? 0.0 : value);
}

std::string value_text(const Value& value, const std::string& unit) {
  std::string out = short_number(value.value);
  if (value.has_interval())
    out += fmt::format(" ({} to {})", short_number(value.low), short_number(value.high));
  return unit.empty() ? out : out + " " + unit;
}

std::string axis_title(const Axis& axis) {
  return axis.unit.empty() ? axis.label : fmt::format("{}, {}", axis.label, axis.unit);
}

size_t letters_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string shortened(const std::string& text, size_t letters) {
  if (letters_of(text) <= letters) return text;
  size_t end = 0;
  for (size_t seen = 0; end < text.size(); ++end)
    if ((static_cast<unsigned char>(text[end]) & 0xc0) != 0x80 && ++seen == std::max<size_t>(letters, 1))
      break;
  return text.substr(0, end) + "\u2026";
}

double step_of(double most, int wanted) {
  const double rough = std::max(most, 1e-12) / wanted;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (power * factor >= rough * 0.999) return power * factor;
  return power * 10;
}

std::string text_at(double x, double y, Anchor anchor, const std::string& text, const char* css) {
  constexpr const char* kAnchors[] = {"", " text-anchor=\"middle\"", " text-anchor=\"end\""};
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}{}>{}</text>\n", x, y,
                     kAnchors[static_cast<int>(anchor)],
                     *css ? fmt::format(" class=\"{}\"", css) : std::string(), escaped(text));
}

std::string line_at(double x1, double y1, double x2, double y2, const char* css) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>\n", x1, y1,
                     x2, y2, css);
}

namespace {

std::string closed(const char* element, const std::string& title) {
  return title.empty() ? "/>\n" : fmt::format("><title>{}</title></{}>\n", escaped(title), element);
}

}  // namespace

std::string rect_at(double x, double y, double width, double height, const std::string& css,
                    const std::string& title) {
  return fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" class=\"{}\"", x, y,
                     width, height, css) +
         closed("rect", title);
}

std::string colour_class(const Look& look) { return fmt::format("k{}", look.colour); }

std::string mark_at(double x, double y, const Look& look, const std::string& title) {
  const std::string css = colour_class(look);
  const auto path = [&](const std::string& d) {
    return fmt::format("<path d=\"{}\" class=\"mark {}\"", d, css) + closed("path", title);
  };
  switch (look.mark) {
    case 1:
      return path(fmt::format("M{:.1f} {:.1f}h7v7h-7z", x - 3.5, y - 3.5));
    case 2:
      return path(fmt::format("M{:.1f} {:.1f}l4.5 8h-9z", x, y - 5));
    case 3:
      return path(fmt::format("M{:.1f} {:.1f}l5 5l-5 5l-5 -5z", x, y - 5));
    default:
      return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.6\" class=\"mark {}\"", x, y, css) +
             closed("circle", title);
  }
}

std::string open_panel(double height, const std::string& title) {
  return fmt::format(
      "<svg class=\"panel\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" "
      "aria-label=\"{}\">\n",
      kPanelWidth, height, escaped(title));
}

std::string legend_key(const Look& look, Series::Kind kind) {
  using Kind = Series::Kind;
  std::string out =
      "<svg class=\"key\" width=\"28\" height=\"12\" "
      "viewBox=\"0 0 28 12\" aria-hidden=\"true\">";
  if (kind == Kind::kColumns) return out + rect_at(8, 0, 12, 12, colour_class(look)) + "</svg>";
  if (kind == Kind::kLine || kind == Kind::kCurve || kind == Kind::kTheory)
    out += line_at(
        1, 6, 27, 6,
        fmt::format("curve {}{}", colour_class(look), kind == Kind::kTheory ? " dashed" : "").c_str());
  if (kind != Kind::kCurve && kind != Kind::kTheory) out += mark_at(14, 6, look);
  return out + "</svg>";
}

std::string legend_square(const Look& look) { return legend_key(look, Series::Kind::kColumns); }

}  // namespace outrider::report
