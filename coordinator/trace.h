// The time of every round, as a Chrome trace (opens in Perfetto and chrome://tracing). Lanes by role: the
// coordinator's passes and, by request, its rounds and their waits, all by the coordinator's clock; each
// draft worker; the leader of the target (the other ranks work with it and report no times); the wire.
// Workers report durations, not times: their slices lie in the middle of the wait for them, and are marked
// "placed": "assumed"; the same is true of the two ways over the wire. Arrows lead from a draft to the pass
// that verified it; counters show lengths, acceptance and waiting requests. Bounded in memory; written once,
// at the end.
#pragma once

#include <cstdio>
#include <map>
#include <vector>

#include "coordinator/rounds/events.h"

namespace outrider {

class Trace {
 public:
  // Rounds beyond the limit are counted, not kept.
  explicit Trace(size_t max_rounds = size_t{1} << 18) : max_rounds_(max_rounds) {}

  // The sender of a draft of this round; called before add(). Drafts that no round used are forgotten.
  void note_draft(SequenceId request, Round round, PeerId worker);
  // `queued`: requests that wait to be begun.
  void add(const RoundDone& round, size_t queued = 0);
  size_t dropped() const { return dropped_; }
  const std::vector<RoundDone>& rounds() const { return rounds_; }
  // The caller checks ferror() and fclose().
  void write(std::FILE* file) const;

 private:
  size_t max_rounds_;
  size_t dropped_ = 0;
  std::vector<RoundDone> rounds_;
  struct Aside {
    PeerId worker;  // that drafted; 0: unknown
    uint32_t queued = 0;
  };
  std::vector<Aside> asides_;  // by round
  struct Drafted {
    Round round;
    PeerId worker;
  };
  std::map<SequenceId, Drafted> drafted_;  // the last of each; bounded, since anybody may send drafts
};

}  // namespace outrider
