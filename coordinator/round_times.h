// How long rounds, passes and prompts take, and from that how long anything is waited for. Knows no request
// and no worker.
#pragma once

#include "comm/transport.h"
#include "coordinator/protocol_options.h"

namespace outrider {

class RoundTimes {
 public:
  explicit RoundTimes(const ProtocolOptions& options) : options_(options) {}

  // One pass of the target, from its plan to its result.
  void observe_step(Clock::duration time, int32_t rows, bool prefills);
  // One round with a draft. A round in which the target or the worker reads prompts is much longer: those
  // before the first without them, an ordinary one, are forgotten with it.
  void observe_round(Clock::duration time, bool ordinary);

  // A round under a match rule waits for its draft so long, and the others of its batch for it.
  Clock::duration draft_timeout() const;
  // A round is worth about what its drafts save, some passes of the target: not half a minute of waiting for
  // a worker that says that it is there and never drafts. Far beyond any difference between one draft and
  // another.
  Clock::duration liveness_timeout() const;
  // Beyond this the target is lost.
  Clock::duration step_timeout() const;
  // What the target takes to read so many tokens of a prompt.
  Clock::duration reading(int32_t tokens) const;

 private:
  const ProtocolOptions& options_;
  double round_ns_ = 0, step_ns_ = 0;       // averages
  double prompt_ns_ = 0, prompt_rows_ = 0;  // of passes with prompt rows
  bool had_ordinary_round_ = false;
};

}  // namespace outrider
