// A virtual clock: runs events in order of time and, at equal times, of scheduling. A simulation uses one
// event queue, on one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "base/log.h"

namespace outrider {

using SimTime = int64_t;  // nanoseconds since the simulation began
constexpr double kSecondsPerTick = 1e-9;
inline SimTime sim_time(double seconds) { return static_cast<SimTime>(seconds * 1e9 + 0.5); }
inline double sim_seconds(SimTime time) { return static_cast<double>(time) * kSecondsPerTick; }

class EventQueue {
 public:
  SimTime now() const { return now_; }
  bool empty() const { return events_.empty(); }
  void at(SimTime when, std::function<void()> action) {
    CHECK(when >= now_, "an event at {} in the past of {}", when, now_);
    events_.push({when, order_++, std::move(action)});
  }
  void after(SimTime delay, std::function<void()> action) { at(now_ + delay, std::move(action)); }
  // Advances the clock without an event.
  void advance(SimTime to) { now_ = to; }
  void run_next() {
    // The action may schedule more, so it leaves the heap first.
    std::function<void()> action = std::move(const_cast<Event&>(events_.top()).action);
    now_ = events_.top().at;
    events_.pop();
    action();
  }

 private:
  struct Event {
    SimTime at;
    uint64_t order;
    std::function<void()> action;
    bool operator<(const Event& other) const { return at != other.at ? at > other.at : order > other.order; }
  };
  std::priority_queue<Event> events_;
  uint64_t order_ = 0;
  SimTime now_ = 0;
};

}  // namespace outrider
