// Emulates a slow or faulty network between the coordinator and its workers, for experiments on one machine.
// Wraps the coordinator's end, because every message passes it and its thread mostly waits; works under
// mpirun and in one process.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/status.h"
#include "comm/transport.h"

namespace outrider {

// Each worker has a link of its own, and each direction of it a queue: a message occupies the link for bytes
// / rate and arrives `delay` after that. Shares are of the messages, drawn from `seed`. Joining and leaving
// are exempt, and Close is never lost, or a worker would hold the sequence for ever. A partition holds back
// all messages that would arrive in it, joining included, as TCP does; they arrive when it ends.
struct LinkEmulation {
  std::chrono::nanoseconds delay{0};  // one way
  double bytes_per_second = 0;        // 0: unlimited
  double loss = 0;
  double duplicate = 0;  // arrive twice
  double corrupt = 0;    // arrive with a bit flipped
  double reorder = 0;    // are held back by up to 20 ms, so that later messages overtake them
  uint64_t seed = 0;
  // A partition between the coordinator and every draft worker, in time since the first worker was admitted.
  std::chrono::nanoseconds partition_from{0}, partition_to{0};
  bool drafters = true;  // apply to links of draft workers; faults only ever happen to these
  bool target = false;
};

// "delay=1ms,rate=1gbit,loss=0.3,duplicate=0.1,corrupt=0.1,reorder=0.1,partition=5s..35s,
// links=draft|target|all,seed=1"; every key is optional.
Result<LinkEmulation> parse_link_emulation(std::string_view text);

// The malformed frames of its stats() include messages that were corrupted here.
std::unique_ptr<Transport> make_emulated_link(std::unique_ptr<Transport> inner, const LinkEmulation& link);

}  // namespace outrider
