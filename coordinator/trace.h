// Where the time of every round went, as a Chrome trace (opens in Perfetto and chrome://tracing): one track
// per request with spans draft, transfer, wait, verify, commit, and beside it one with what was prepared
// ahead. Bounded in memory; written once, at the end.
#pragma once

#include <cstdio>
#include <string_view>
#include <vector>

#include "coordinator/events.h"

namespace outrider {

class Trace {
 public:
  // Rounds beyond the limit are counted, not kept.
  explicit Trace(size_t max_rounds = size_t{1} << 18) : max_rounds_(max_rounds) {}

  void add(const RoundDone& round);
  size_t dropped() const { return dropped_; }
  const std::vector<RoundDone>& rounds() const { return rounds_; }
  // Whether it was written is told by ferror() and fclose().
  void write(std::FILE* file) const;

 private:
  size_t max_rounds_;
  size_t dropped_ = 0;
  std::vector<RoundDone> rounds_;
};

}  // namespace outrider
