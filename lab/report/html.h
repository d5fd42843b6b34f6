// A report as one HTML page that asks for nothing but itself: figures are inline SVG, each can be saved as
// SVG and its values as CSV; readable on a phone, in the dark, on paper and by keyboard. Without scripts all
// but saving SVG and quick values on hover remains.
#pragma once

#include <string>

#include "lab/report/report.h"

namespace outrider::report {

std::string html_page(const Report& report);

}  // namespace outrider::report
