// The times of a run's rounds, condensed from its Chrome trace (coordinator/trace.h) to the needs of figures.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace outrider {

struct Interval {
  double begin_ms = 0, end_ms = 0;  // since the first round of the run
};

struct TimedRound {
  int64_t request = 0;
  int drafted = 0, accepted = 0, emitted = 0;
  bool first = false;  // of its request: ends the prefill, whatever the policy
  double end_ms = 0;   // its tokens were emitted
};

struct Timeline {
  std::vector<TimedRound> rounds;  // by end
  std::vector<Interval> draft, prepare,
      verify;           // by begin: the worker drafts, drafts ahead; the target works
  int64_t dropped = 0;  // rounds beyond the trace's limit

  double end_ms() const { return rounds.empty() ? 0 : rounds.back().end_ms; }
  // Gaps between the tokens of a request, over all requests, ascending; zeros inside a burst included.
  std::vector<double> gaps_ms() const;
  // The stretch of `length_ms` in the middle of the run.
  Interval middle(double length_ms) const;
};

// The part of a trace that is kept in the record of a run: its first rounds, as columns of numbers.
nlohmann::json condensed_trace(const nlohmann::json& trace);
// Empty if the record holds none.
Timeline timeline_of(const nlohmann::json& condensed);

// The share of `within` that is covered by the intervals of any list.
double covered_share(const std::vector<const std::vector<Interval>*>& lists, Interval within);

}  // namespace outrider
