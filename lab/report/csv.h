// The values of a figure or table as CSV (RFC 4180), for whoever wants to draw them anew.
#pragma once

#include <string>

#include "lab/report/report.h"

namespace outrider::report {

// Lines: panel, series, x, y, and the interval where there is one; of lanes panel, lane, what, begin, end.
std::string csv_of(const Figure& figure);
std::string csv_of(const Table& table);

}  // namespace outrider::report
