// The same requests with and without a drafter, in turns (--compare-plain).
#pragma once

#include <chrono>
#include <vector>

#include "base/status.h"
#include "launch/commands/generate_job.h"
#include "requests/report.h"

namespace outrider {

// The number of runs of each side. Short runs are repeated, since a run of a few milliseconds is a weak
// sample.
struct CompareTurns {
  int wanted = 0;  // 0: nine, or fewer if two seconds pass first
  bool go_on(int turns, std::chrono::duration<double> taken) const;
};

// Plain decoding runs first, then the run that the caller makes, reports and hands over, then the further
// turns, whose texts are discarded. Used in that order; `job` outlives it.
class PlainRuns {
 public:
  explicit PlainRuns(const GenerateJob& job) : job_(job) {}

  Status first();
  // If a further turn fails or is interrupted, the finished turns count, and the error is reported.
  PlainComparison compare(const GenerateResult& speculative, CompareTurns turns);
  // Results of the first plain run.
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
