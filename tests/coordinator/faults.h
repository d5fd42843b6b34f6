// Faults of a simulated run and their frequencies. simulated_cluster.cpp decides when each fault happens.
#pragma once

#include <cstdint>
#include <random>

#include "comm/messages.h"

namespace outrider {

// Faults of slices on their way to the target's ranks.
struct SliceFaults {
  double drop = 0, duplicate = 0, corrupt = 0, refuse_send = 0;
  int64_t max_delay_us = 200;
  bool reorder = false;
  int only_rank = -1;  // the others get everything at once; -1: all ranks are alike
};

struct Faults {
  double drop = 0, duplicate = 0, corrupt = 0, refuse_send = 0;  // per message on a worker's link
  int64_t max_delay_us = 200;                                    // uniform
  bool reorder = false;                                          // else each direction of a link is ordered
  double worker_death = 0;                                       // per draft
  bool silent_death = false;                                     // the coordinator is not told
  bool mute = false;                                             // workers send everything but drafts
  double nonfinite = 0;                                          // per verdict
  double target_failure = 0;                                     // per step
  double target_return = 0;                                      // per failure
  double cancel = 0;                                             // per emission
  double lose_blocks = 0;                                        // per prompt that another group prefilled
  double stall = 0;  // per step of a group that only prefills: it answers 30 ms late
  SliceFaults slices;
};

// Counts of the faults that happened.
struct FaultCounts {
  int64_t drop = 0, duplicate = 0, corrupt = 0, refuse_send = 0;
  int64_t worker_death = 0, target_failure = 0, cancel = 0, lose_blocks = 0, stall = 0;

  FaultCounts& operator+=(const FaultCounts& more);
};

// One field of it becomes something else. The frame's checksum is taken to be right: these are lies, not
// noise.
void corrupt(Draft& draft, std::mt19937_64& random);
void corrupt(QSlice& slice, std::mt19937_64& random);

}  // namespace outrider
