// Parts of every page: its style, and the script that shows values on hover and saves figures.
#pragma once

#include <string>

namespace outrider::report {

// With the palette's colours as variables.
std::string page_style();
// The rules of figures alone, with the colours of paper written out: for SVG files.
std::string figure_style();
const char* page_script();

}  // namespace outrider::report
