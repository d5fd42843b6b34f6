// Drawing of figures. Lengths are units of a panel's viewBox, about a pixel each. Colours are CSS classes:
// "kN" sets a colour, and shapes take it as currentColor.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lab/report/palette.h"
#include "lab/report/report.h"

namespace outrider::report {

// A panel fits a telephone; larger screens show several side by side.
constexpr double kPanelWidth = 360;
constexpr double kLetter = 6.7;  // of the width of a letter, about

struct LegendItem {
  std::string name;
  std::string key;  // SVG
};
struct Drawn {
  std::vector<std::string> panels;  // SVG elements; none: there is nothing to show
  std::vector<LegendItem> legend;   // empty where names stand in the panels
};
Drawn draw(const Plot& plot, const Palette& palette);
Drawn draw(const Bars& bars, const Palette& palette);
Drawn draw(const Lanes& lanes, const Palette& palette);

// For HTML and SVG, in text and in attributes.
std::string escaped(std::string_view text);
// Rounds to three digits; whole numbers keep all digits.
std::string short_number(double value);
// "1.53 (1.41 to 1.6) tokens/s"
std::string value_text(const Value& value, const std::string& unit);
// "label, unit"
std::string axis_title(const Axis& axis);
// Shortens a text to at most `letters` letters.
std::string shortened(const std::string& text, size_t letters);
size_t letters_of(std::string_view text);

// About `wanted` steps to `most`: 1, 2 or 5 times a power of ten.
double step_of(double most, int wanted = 5);

enum class Anchor { kStart, kMiddle, kEnd };
std::string text_at(double x, double y, Anchor anchor, const std::string& text, const char* css = "");
// `css`: a class; the stroke of most is that of the class.
std::string line_at(double x1, double y1, double x2, double y2, const char* css);
// Tells `title` on hover, where there is one.
std::string rect_at(double x, double y, double width, double height, const std::string& css,
                    const std::string& title = "");
std::string mark_at(double x, double y, const Look& look, const std::string& title = "");
std::string colour_class(const Look& look);

// Close it with "</svg>\n".
std::string open_panel(double height, const std::string& title);
// Line and mark, mark alone, or a square, as a legend shows them.
std::string legend_key(const Look& look, Series::Kind kind);
std::string legend_square(const Look& look);

}  // namespace outrider::report
