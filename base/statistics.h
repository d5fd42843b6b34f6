// What samples say: middles, and intervals that tell what the samples cannot. Pure functions.
#pragma once

#include <vector>

namespace outrider {

// The middle value; of an even count the mean of the two middle ones. 0 of none.
double median(std::vector<double> values);

// A figure over turns or repeats.
struct Spread {
  double median = 0, low = 0, high = 0;  // low, high: the extremes
  static Spread of(const std::vector<double>& values);
};

}  // namespace outrider
