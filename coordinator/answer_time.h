// How long a worker takes from a Propose to its Draft, and from when on that is overdue: the smoothed mean and
// deviation of TCP's retransmission timer (RFC 6298).
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>

#include "comm/transport.h"

namespace outrider {

class AnswerTime {
 public:
  // What was asked for again counts for little more than usual, else losses would put off the next repetition.
  void observe(Clock::duration wait, bool repeated) {
    double ns = std::chrono::duration<double, std::nano>(wait).count();
    if (!known()) {
      mean_ = ns;
      deviation_ = ns / 2;
      return;
    }
    if (repeated) ns = std::min(ns, 1.2 * mean_);
    deviation_ += (std::abs(ns - mean_) - deviation_) / 4;
    mean_ += (ns - mean_) / 8;
  }
  bool known() const { return mean_ > 0; }
  Clock::duration overdue() const {
    return std::chrono::nanoseconds(static_cast<int64_t>(mean_ + std::max(4 * deviation_, mean_ / 4)));
  }

 private:
  double mean_ = 0, deviation_ = 0;  // ns
};

}  // namespace outrider
