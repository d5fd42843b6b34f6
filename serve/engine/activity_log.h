// A line on standard error every ten seconds while there is traffic.
#pragma once

#include <string>

#include "serve/engine/engine.h"

namespace outrider {

// Activity in the `seconds` between two samples: requests, tokens per second, acceptance.
std::string activity_line(const EngineNumbers& before, const EngineNumbers& now, double seconds);

class ActivityLog {
 public:
  explicit ActivityLog(bool enabled) : enabled_(enabled) {}
  // Call it often.
  void look(const Engine& engine);

 private:
  const bool enabled_;
  Clock::time_point last_ = Clock::now();
  EngineNumbers before_;
};

}  // namespace outrider
