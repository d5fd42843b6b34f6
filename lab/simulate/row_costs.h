// The cost of verifying more rows, as given by a user.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace outrider {

// The cost of a pass of that many rows, relative to a pass of one row: straight lines between given points,
// the last one extended.
class RowCosts {
 public:
  // (rows, cost), rows increasing from above 1; (1, 1) is understood.
  explicit RowCosts(std::vector<std::pair<double, double>> points) : points_(std::move(points)) {}
  double of(double rows) const;

 private:
  std::vector<std::pair<double, double>> points_;
};

// ROWS=COST, e.g. "16=1.10", "64=1.3". An error names --row-costs.
Result<RowCosts> parse_row_costs(const std::vector<std::string>& texts);

}  // namespace outrider
