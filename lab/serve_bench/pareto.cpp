#include "lab/serve_bench/pareto.h"

#include <algorithm>

namespace outrider {

void mark_front(std::span<LoadPoint> points) {
  for (LoadPoint& point : points) {
    const auto beats = [&](const LoadPoint& other) {
      return other.measured() && other.user >= point.user && other.server >= point.server &&
             (other.user > point.user || other.server > point.server);
    };
    point.on_front = point.measured() && std::none_of(points.begin(), points.end(), beats);
  }
}

std::optional<double> server_at(std::span<const LoadPoint> points, double user) {
  std::vector<LoadPoint> front;
  for (const LoadPoint& point : points)
    if (point.on_front) front.push_back(point);
  std::sort(front.begin(), front.end(),
            [](const LoadPoint& a, const LoadPoint& b) { return a.user < b.user; });
  if (front.empty() || user > front.back().user) return std::nullopt;
  const auto after =
      std::find_if(front.begin(), front.end(), [&](const LoadPoint& point) { return point.user >= user; });
  if (after == front.begin() || after->user == user) return after->server;
  const LoadPoint& before = *(after - 1);
  const double share = (user - before.user) / (after->user - before.user);
  return before.server + share * (after->server - before.server);
}

}  // namespace outrider
