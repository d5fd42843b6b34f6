// The measured cost of passes by their number of rows.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

namespace outrider {

// The cost of a pass of that many rows, relative to a pass of one row: straight lines between given points,
// the last one extended. Without points every pass costs 1.
class RowCosts {
 public:
  RowCosts() = default;
  // (rows, cost), rows increasing from above 1; (1, 1) is understood.
  explicit RowCosts(std::vector<std::pair<double, double>> points) : points_(std::move(points)) {}
  double of(double rows) const {
    double x0 = 1, y0 = 1, slope = 0;
    for (const auto& [x1, y1] : points_) {
      slope = (y1 - y0) / (x1 - x0);
      if (rows <= x1) break;
      x0 = x1;
      y0 = y1;
    }
    return std::max(1.0, y0 + slope * (rows - x0));
  }
  const std::vector<std::pair<double, double>>& points() const { return points_; }

 private:
  std::vector<std::pair<double, double>> points_;
};

}  // namespace outrider
