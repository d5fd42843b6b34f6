#include "lab/report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lab/report/svg_parts.h"

namespace outrider {
namespace {

// Okabe and Ito's colours: told apart by colour-blind readers, and in print.
constexpr std::array<const char*, 7> kColours{"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                              "#b8860b", "#56b4e9", "#000000"};

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

const char* colour_of(int index) { return kColours[static_cast<size_t>(index) % kColours.size()]; }

double step_of(double most) {
  const double rough = std::max(most, 1e-12) / 5;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (power * factor >= rough) return power * factor;
  return power * 10;
}

// Names are options and paths; a character of several bytes at the cut is left out whole.
std::string shortened(const std::string& text, size_t characters) {
  if (text.size() <= characters) return text;
  size_t end = characters - 1;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + "\u2026";
}

std::string text_at(double x, double y, const char* anchor, const std::string& text, const char* style) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, style,
                     escaped(text));
}

std::string line_at(double x1, double y1, double x2, double y2, const char* colour, double width,
                    const char* style) {
  return fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" stroke-width=\"{}\"{}/>\n",
      x1, y1, x2, y2, colour, width, style);
}

std::string rect_at(double x, double y, double width, double height, const char* colour) {
  return fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", x,
                     y, width, height, colour);
}

std::string open_svg(double width, double height, const std::string& title) {
  return fmt::format(
             "<svg width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" role=\"img\" "
             "aria-label=\"{2}\">\n",
             width, height, escaped(title)) +
         text_at(4, 16, "start", shortened(title, static_cast<size_t>(width / 6.8)), " class=\"title\"");
}

}  // namespace outrider
