// The time of a pass by its number of rows, as a target measured it, in passes of one row: straight lines
// between the measured points, the last one extended. Without a measurement: the number of rows itself.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/messages/joining.h"

namespace outrider {

class RowCurve {
 public:
  struct Point {
    double rows, passes;
  };

  RowCurve() = default;
  // Takes no point of a measurement that makes no sense. More rows never take less time, nor more than passes
  // of one row each would take.
  explicit RowCurve(std::span<const RowCost> measured) {
    if (measured.empty()) return;
    points_ = {{1, 1}};
    for (const RowCost& cost : measured) {
      const Point last = points_.back();
      if (!(cost.rows > last.rows) || !(cost.passes > 0)) {
        points_.clear();
        return;
      }
      points_.push_back({static_cast<double>(cost.rows),
                         std::clamp<double>(cost.passes, last.passes, last.passes + cost.rows - last.rows)});
    }
  }

  bool is_measured() const { return !points_.empty(); }
  std::span<const Point> points() const { return points_; }  // one row first
  double last_rows() const { return points_.empty() ? 0 : points_.back().rows; }
  double of(double rows) const {
    if (points_.empty()) return rows;
    size_t to = 1;
    while (to + 1 < points_.size() && rows > points_[to].rows) ++to;
    const Point a = points_[to - 1], b = points_[to];
    return std::max(1.0, a.passes + (rows - a.rows) * (b.passes - a.passes) / (b.rows - a.rows));
  }

 private:
  std::vector<Point> points_;
};

}  // namespace outrider
