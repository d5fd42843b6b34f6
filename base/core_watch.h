// For busy-polling loops, which avoid the latency of a wake-up: detects that other programs want the core.
// The thread should then sleep, because the scheduler wakes a sleeper sooner than a thread that used up its
// share by polling. Pure arithmetic on the times passed in; used by one thread.
#pragma once

#include <chrono>

namespace outrider {

class CoreWatch {
 public:
  using Clock = std::chrono::steady_clock;

  // Call before the first look, and after any other work.
  void begin(Clock::time_point now) { last_ = now; }
  // Whether to look again. False for a while after a look that took so long that this thread must have lost
  // its core.
  bool may_look(Clock::time_point now) {
    if (now - last_ > kLost) crowded_until_ = now + kCrowded;
    last_ = now;
    return now >= crowded_until_;
  }

 private:
  // A look takes 1 to 2 us, with an interrupt some tens, and milliseconds if the core was lost for a time
  // slice.
  static constexpr std::chrono::microseconds kLost{500};
  static constexpr std::chrono::milliseconds kCrowded{100};

  Clock::time_point last_{}, crowded_until_{};
};

}  // namespace outrider
