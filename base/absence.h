// Detects that a loop did not run: a stopped process (SIGSTOP, Ctrl-Z, a frozen container, a starved machine)
// wakes up after its deadlines have passed, with unread messages. Deadlines then move by the missed time, so
// that peers keep the time they had left.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

namespace outrider {

class Absence {
 public:
  using Clock = std::chrono::steady_clock;
  // Longer than a loop works or waits between two looks. This much of an absence counts as normal time.
  static constexpr std::chrono::seconds kLongestTurn{10};
  // The longest single wait of a loop, so that it looks often enough.
  static constexpr std::chrono::seconds kLongestWait{1};

  // Looks at the clock. Returns the time missed since the last look; zero: none.
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
  // The end of the next single wait.
  Clock::time_point next_look() const {
    if (at_ == Clock::time_point::max()) return at_;
    return std::min(at_, Clock::now() + Absence::kLongestWait);
  }

 private:
  Clock::time_point at_;
  Absence absence_;
};

}  // namespace outrider
