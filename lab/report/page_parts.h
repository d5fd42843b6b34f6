// Parts of every page: its style, and the script that shows values on hover and saves figures.
#pragma once

#include <string>

namespace outrider::report {

// With the palette's colours as variables.
std::string page_style();
const char* page_script();

}  // namespace outrider::report
