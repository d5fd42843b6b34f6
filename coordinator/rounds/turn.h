// One step of the protocol machine: its time, and its actions in order. Lives for one event.
#pragma once

#include <utility>
#include <vector>

#include "coordinator/rounds/events.h"

namespace outrider {

class Turn {
 public:
  explicit Turn(Clock::time_point now) : now_(now) {}
  Clock::time_point now() const { return now_; }
  void send(PeerId to, Message message);
  void add(Action action);
  std::vector<Action> take_actions() { return std::move(actions_); }

 private:
  Clock::time_point now_;
  std::vector<Action> actions_;
};

}  // namespace outrider
