// A count for programs that start and stop workers: follows a count that changes from step to step, and does
// not flap. The mean has a time constant of 15 s. The result stays while it is at most 3/4 away from the
// mean; then it is the whole number next to the mean. So a lasting change by one shows after 21 s, and a
// count that alternates between two neighbours changes nothing.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

#include "comm/transport.h"

namespace outrider {

class SteadyCount {
 public:
  // `count` holds from now until the next call.
  int64_t follow(int64_t count, Clock::time_point now) {
    const double passed = last_ ? std::chrono::duration<double>(now - *last_).count() : 0;
    last_ = now;
    mean_ += (1 - std::exp(-passed / kSeconds)) * (static_cast<double>(count_) - mean_);
    count_ = count;
    if (std::abs(mean_ - static_cast<double>(steady_)) > kSlack) steady_ = std::llround(mean_);
    return steady_;
  }

 private:
  static constexpr double kSeconds = 15, kSlack = 0.75;
  std::optional<Clock::time_point> last_;
  double mean_ = 0;
  int64_t count_ = 0, steady_ = 0;
};

}  // namespace outrider
