// What the charts of svg.h are drawn with. Lengths in pixels.
#pragma once

#include <string>

namespace outrider {

const char* colour_of(int index);
// About five steps to `most`: 1, 2 or 5 times a power of ten.
double step_of(double most);
// Cut to what fits in so many characters.
std::string shortened(const std::string& text, size_t characters);

std::string text_at(double x, double y, const char* anchor, const std::string& text, const char* style = "");
std::string line_at(double x1, double y1, double x2, double y2, const char* colour, double width,
                    const char* style = "");
std::string rect_at(double x, double y, double width, double height, const char* colour);
// Opens the element and writes the title; close it with "</svg>\n".
std::string open_svg(double width, double height, const std::string& title);

}  // namespace outrider
