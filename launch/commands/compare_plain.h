// The same requests with and without a drafter, in turns (--compare-plain).
#pragma once

#include <chrono>
#include <vector>

#include "base/status.h"
#include "launch/commands/generate_job.h"
#include "requests/report.h"

namespace outrider {

// How often both sides run. Short runs are repeated, since one of a few milliseconds tells little.
struct CompareTurns {
  int wanted = 0;  // 0: nine, or as many as begin within two seconds
  bool go_on(int turns, std::chrono::duration<double> taken) const;
};

// Plain decoding runs first, then the run that the caller makes, reports and hands over, then the further
// turns, whose texts nobody sees. Used in that order; `job` outlives it.
class PlainRuns {
 public:
  explicit PlainRuns(const GenerateJob& job) : job_(job) {}

  Status first();
  // Where a further turn fails or is interrupted, what was measured counts, and the error is told.
  PlainComparison compare(const GenerateResult& speculative, CompareTurns turns);
  // Of the first run.
  const std::vector<RequestResult>& requests() const { return plain_.requests; }

 private:
  GenerateResult run(bool plain, bool quiet) const;
  Result<PlainTurn> turn(bool plain_first, const GenerateResult& expected);

  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  const GenerateJob& job_;
  GenerateResult plain_;
  bool identical_ = true;
};

}  // namespace outrider
