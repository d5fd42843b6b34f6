// How long a target group that computes a pass is left alone between two questions whether its process lives.
#pragma once

#include <algorithm>
#include <chrono>

namespace outrider {

constexpr std::chrono::milliseconds kFirstProbePause{250};

// It reads nothing meanwhile, and its queue is short (ZmqOptions::high_water_mark): so pauses grow, by
// doubling up to a second and by a tenth from there. A death within the first ten seconds is found within one
// or two more, and half an hour has fewer questions than a queue has places.
constexpr std::chrono::microseconds next_probe_pause(std::chrono::microseconds pause) {
  constexpr std::chrono::microseconds kShort{1'000'000};
  return pause < kShort ? std::min(2 * pause, kShort) : pause + pause / 10;
}

}  // namespace outrider
