// The usual time from a Propose to its Draft without the drafting, and the time after which a Draft is
// overdue: smoothed mean and deviation, as in TCP's retransmission timer (RFC 6298).
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "comm/transport.h"

namespace outrider {

class AnswerTime {
 public:
  // Measured from the Propose that was answered, not from the first one, which may have been lost. An outlier
  // counts for at most twice the usual time.
  void observe(Clock::duration exchange) {
    if (!std::exchange(measured_, true)) return begin(exchange);
    const double ns = std::min(nanoseconds(exchange), 2 * mean_);
    deviation_ += (std::abs(ns - mean_) - deviation_) / 4;
    mean_ += (ns - mean_) / 8;
  }
  // A Propose was repeated; `in_vain`: the first one was answered after all. Settles at two vain repeats for
  // five lost messages: hardly any repeats where nothing is lost, and no longer waits where much is lost.
  void repeated(bool in_vain) { patience_ = std::clamp(patience_ + (in_vain ? 0.25 : -0.1), 0.0, 1.0); }
  // Takes the time of a probe draft. Used until a draft of a round is measured.
  void suppose(Clock::duration exchange) {
    if (!measured_ && (!known() || nanoseconds(exchange) < mean_)) begin(exchange);
  }
  // Whether the first Propose or its answer was lost.
  void lost(bool was) { lost_ += ((was ? 1 : 0) - lost_) / 16; }
  bool much_is_lost() const { return lost_ > 0.1; }
  bool known() const { return mean_ > 0; }
  // The wait after which a Draft is overdue, if making it takes `drafting`.
  Clock::duration overdue(Clock::duration drafting) const {
    const double usual = mean_ + std::max(4 * deviation_, mean_ / 4) + static_cast<double>(drafting.count());
    return std::chrono::nanoseconds(static_cast<int64_t>(usual * (1 + patience_)));
  }

 private:
  static double nanoseconds(Clock::duration exchange) {
    return std::max(1.0, std::chrono::duration<double, std::nano>(exchange).count());
  }
  void begin(Clock::duration exchange) {
    mean_ = nanoseconds(exchange);
    deviation_ = mean_ / 2;
  }

  bool measured_ = false;
  double mean_ = 0, deviation_ = 0;  // ns
  double lost_ = 0;                  // share of late exchanges
  double patience_ = 0;              // extra wait, as a share of the usual time
};

}  // namespace outrider
