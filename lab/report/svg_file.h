// A figure as an SVG file of its own, with colours written out, for papers and other programs.
#pragma once

#include <string>

#include "lab/report/report.h"

namespace outrider::report {

// Empty: there is nothing to show.
std::string svg_file(const Figure& figure);

}  // namespace outrider::report
