// Speed for a user against speed of the whole server, over loads: the curve by which speculation is judged. A
// point is one server at one rate of arrivals. It is on the front of its server where no other point of that
// server is better in both.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace outrider {

struct LoadPoint {
  double rate = 0;    // of arrivals, requests a second
  double user = 0;    // tokens a second of one text after its first token: 1 / median time per token
  double server = 0;  // tokens a second of all texts
  bool on_front = false;

  bool measured() const { return user > 0 && server > 0; }
};

// Marks the points on the front. Points that were not measured are not on it.
void mark_front(std::span<LoadPoint> points);

// The server's tokens/s at the speed `user` for each user. Between two neighbours of the front it is on the
// straight line between them; below the slowest point it is that point's. Empty: users are never that fast.
std::optional<double> server_at(std::span<const LoadPoint> points, double user);

}  // namespace outrider
