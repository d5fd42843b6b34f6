// The pause between two probes of a target group that computes a pass.
#pragma once

#include <algorithm>
#include <chrono>

namespace outrider {

constexpr std::chrono::milliseconds kFirstProbePause{250};

// A busy group reads no messages, and its queue is short (ZmqOptions::high_water_mark). So pauses grow, by
// doubling up to a second and by a tenth from there. A failure within the first ten seconds is found within
// one or two more, and half an hour has fewer probes than a queue has entries.
constexpr std::chrono::microseconds next_probe_pause(std::chrono::microseconds pause) {
  constexpr std::chrono::microseconds kShort{1'000'000};
  return pause < kShort ? std::min(2 * pause, kShort) : pause + pause / 10;
}

}  // namespace outrider
