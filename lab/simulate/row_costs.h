// What verifying more rows costs, as a user states it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace outrider {

// What a pass of so many rows costs, of one of a single row: straight lines between given points, the last
// one going on as it was.
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
