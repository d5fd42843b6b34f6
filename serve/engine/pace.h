// The present decoding speed of a coordinator, and the part of it that drafts contribute. Defines the names
// that the log, /metrics and the status page share.
#pragma once

#include <deque>

#include "coordinator/metrics/metrics.h"
#include "coordinator/overview.h"

namespace outrider {

// The kind of rounds that the speedups of a Pace describe.
enum class DraftingPace : uint8_t {
  kIdle,         // no round in the last seconds
  kNotMeasured,  // the time of a round without drafts is not known yet
  kNotDrafting,  // hardly anything is drafted: it does not pay now, or nothing drafts
  kDrafting
};

// Over the last seconds with rounds; zeros without rounds.
struct Pace {
  double tokens_per_second = 0;
  double prompt_tokens_per_second = 0;
  double acceptance = 0;              // accepted draft tokens per tested draft token
  double tokens_per_round = 0;        // of one sequence: emitted per verified round
  double tokens_per_target_pass = 0;  // of all sequences that share the pass
  // Speedup over plain decoding of the same batch, whose round time is the cost model's. Predicted: from this
  // acceptance and the modelled time of rounds with drafts. Measured: from the rounds whose pass had no
  // prefill rows. 0: there is none, and `drafting` says why.
  double predicted_speedup = 0, measured_speedup = 0;
  DraftingPace drafting = DraftingPace::kIdle;
};

// The pace of `now` - `before`, taken `seconds` apart.
Pace pace_between(const Totals& before, const Totals& now, double seconds, const Overview& overview);

class PaceKeeper {
 public:
  // Call it often.
  const Pace& look(Clock::time_point now, const Totals& totals, const Overview& overview);

 private:
  struct Sums {  // the part of Totals that pace_between() reads, without histograms
    Clock::time_point at;
    Totals totals;
  };
  std::deque<Sums> past_;  // one a second, at most ten
  Overview busy_;          // the last one with running sequences: keeps the cost of rounds after they end
  Pace pace_;
};

}  // namespace outrider
