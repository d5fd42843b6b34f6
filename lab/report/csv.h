// The values of a figure or table as CSV (RFC 4180), for other plotting tools.
#pragma once

#include <string>

#include "lab/report/report.h"

namespace outrider::report {

// Lines: panel, series, x, y, and the interval if there is one; for lanes: panel, lane, what, begin, end.
std::string csv_of(const Figure& figure);
std::string csv_of(const Table& table);
// One field, quoted where it has to be.
std::string csv_field(const std::string& text);

}  // namespace outrider::report
