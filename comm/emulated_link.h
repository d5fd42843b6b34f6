// A slow or faulty network between the coordinator and its workers, for experiments on one machine. Wraps the
// coordinator's end, which every message passes and whose thread mostly waits; under mpirun and in one
// process alike.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/status.h"
#include "comm/transport.h"

namespace outrider {

// Each worker has a link of its own, and each direction of it a queue: a message occupies the link for its
// bytes / rate and arrives `delay` after that. Shares are of the messages, drawn from `seed`. Joining and
// leaving are exempt, and Close is never lost: a worker would hold the sequence for ever. A partition holds
// back whatever would arrive in it, joining included, as TCP does; it all arrives when the partition ends.
struct LinkEmulation {
  std::chrono::nanoseconds delay{0};  // one way
  double bytes_per_second = 0;        // 0: unlimited
  double loss = 0;
  double duplicate = 0;  // arrive twice
  double corrupt = 0;    // arrive with a bit flipped
  double reorder = 0;    // are held back by up to 20 ms, so that later ones overtake
  uint64_t seed = 0;
  // Between the coordinator and every draft worker, counted from when the first of them was let in.
  std::chrono::nanoseconds partition_from{0}, partition_to{0};
  bool drafters = true;  // the links it is about; faults only ever happen to those of draft workers
  bool target = false;
};

// "delay=1ms,rate=1gbit,loss=0.3,duplicate=0.1,corrupt=0.1,reorder=0.1,partition=5s..35s,
// links=draft|target|all,seed=1"; every key is optional.
Result<LinkEmulation> parse_link_emulation(std::string_view text);

// Malformed frames of its stats() include what was corrupted here.
std::unique_ptr<Transport> make_emulated_link(std::unique_ptr<Transport> inner, const LinkEmulation& link);

}  // namespace outrider
