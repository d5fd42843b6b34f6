// How fast a coordinator decodes just now, and how much of that is owed to drafts. Definitions of the names
// that the log, /metrics and the status page share.
#pragma once

#include <deque>

#include "coordinator/metrics.h"
#include "coordinator/overview.h"

namespace outrider {

// Over the last seconds in which there were rounds; zeros where there were none.
struct Pace {
  double tokens_per_second = 0;
  double prompt_tokens_per_second = 0;
  double acceptance = 0;              // accepted draft tokens per draft token that the target looked at
  double tokens_per_round = 0;        // of one sequence: emitted per verified round
  double tokens_per_target_pass = 0;  // of all sequences that share the pass
  // Against plain decoding of the same batch, whose rounds take as long as the cost model believes.
  // Predicted: from this acceptance and what rounds with drafts are believed to take. Measured: from the
  // rounds whose pass read no prompt. 0: nothing is known, or nobody drafts.
  double predicted_speedup = 0, measured_speedup = 0;
};

// The pace of `now` - `before`, taken `seconds` apart.
Pace pace_between(const Totals& before, const Totals& now, double seconds, const Overview& overview);

class PaceKeeper {
 public:
  // To be called often.
  const Pace& look(Clock::time_point now, const Totals& totals, const Overview& overview);

 private:
  struct Sums {  // what of Totals pace_between() reads, as a Totals without its histograms
    Clock::time_point at;
    Totals totals;
  };
  std::deque<Sums> past_;  // one a second, ten at most
  Overview busy_;          // the last one in which sequences were decoded: what rounds cost outlives them
  Pace pace_;
};

}  // namespace outrider
