// Average times of rounds, passes and prefills, and the timeouts that follow from them. Independent of
// requests and workers.
#pragma once

#include "comm/transport.h"
#include "coordinator/scheduler/protocol_options.h"

namespace outrider {

class RoundTimes {
 public:
  explicit RoundTimes(const ProtocolOptions& options) : options_(options) {}

  // One pass of the target, from its plan to its result.
  void observe_step(Clock::duration time, int32_t rows, bool prefills);
  // Takes one round with a draft. A round with a prefill, on target or worker, is much longer: such rounds
  // are dropped at the first `ordinary` one.
  void observe_round(Clock::duration time, bool ordinary);

  // The time that a round under a match rule waits for its draft, and the other sequences of its batch wait
  // for it.
  Clock::duration draft_timeout() const;
  // Under p/q rules: far above any difference between two drafts. Bounded, because a round saves only a few
  // passes of the target, which do not justify half a minute of waiting for a worker that sends heartbeats
  // and never drafts.
  Clock::duration liveness_timeout() const;
  // After this time without a result a group that only prefills is late. `expected`: of its step.
  Clock::duration late_step(Clock::duration expected) const;
  // After this time without a result the target is lost.
  Clock::duration step_timeout() const;
  // The expected time of the target to prefill this many prompt tokens.
  Clock::duration prefill(int32_t tokens) const;

 private:
  const ProtocolOptions& options_;
  double round_ns_ = 0, step_ns_ = 0;       // averages
  double prompt_ns_ = 0, prompt_rows_ = 0;  // of passes with prompt rows
  bool had_ordinary_round_ = false;
};

}  // namespace outrider
