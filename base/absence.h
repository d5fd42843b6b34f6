// Tells a loop that it was away: a process that is stopped (SIGSTOP, Ctrl-Z, a frozen container, a starved
// machine) wakes up behind all its deadlines, with what it waited for unread. Deadlines then move by the
// time that was missed, and whoever is awaited gets what was left.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

namespace outrider {

class Absence {
 public:
  using Clock = std::chrono::steady_clock;
  // Longer than a loop works or waits between two looks. So much of an absence counts as time.
  static constexpr std::chrono::seconds kLongestTurn{10};
  // How long a loop may wait at once, so that it looks often enough.
  static constexpr std::chrono::seconds kLongestWait{1};

  // Looks at the clock. What was missed since the last look; zero: nothing.
  Clock::duration look(Clock::time_point now) {
    const auto turn = last_ ? now - *last_ : Clock::duration(0);
    last_ = now;
    return turn > kLongestTurn ? turn - kLongestTurn : Clock::duration(0);
  }

 private:
  std::optional<Clock::time_point> last_;
};

// A deadline of a loop that looks at least every kLongestWait.
class MovingDeadline {
 public:
  using Clock = Absence::Clock;
  explicit MovingDeadline(Clock::time_point at) : at_(at) { (void)absence_.look(Clock::now()); }

  bool is_over() { return is_over(Clock::now()); }
  bool is_over(Clock::time_point now) {
    const auto missed = absence_.look(now);
    if (at_ != Clock::time_point::max()) at_ += missed;
    return now >= at_;
  }
  // Until when to wait at once.
  Clock::time_point next_look() const {
    if (at_ == Clock::time_point::max()) return at_;
    return std::min(at_, Clock::now() + Absence::kLongestWait);
  }

 private:
  Clock::time_point at_;
  Absence absence_;
};

}  // namespace outrider
