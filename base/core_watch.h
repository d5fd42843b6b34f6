// For loops that look for something again and again, because to sleep and be woken takes longer: says when
// other programs want the core. Then whoever sleeps is woken sooner than whoever used its share up by
// looking. Plain arithmetic on times that it is told; one owner thread.
#pragma once

#include <chrono>

namespace outrider {

class CoreWatch {
 public:
  using Clock = std::chrono::steady_clock;

  // Before the first look, and after anything else that takes time.
  void begin(Clock::time_point now) { last_ = now; }
  // Between two looks: whether to look again. Not for a while after a look that took so long that this thread
  // cannot have had its core all the time.
  bool may_look(Clock::time_point now) {
    if (now - last_ > kLost) crowded_until_ = now + kCrowded;
    last_ = now;
    return now >= crowded_until_;
  }

 private:
  // A look takes a microsecond or two, what interrupts of the system take some tens, a slice milliseconds.
  static constexpr std::chrono::microseconds kLost{500};
  static constexpr std::chrono::milliseconds kCrowded{100};

  Clock::time_point last_{}, crowded_until_{};
};

}  // namespace outrider
