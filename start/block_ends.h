// The ends through which ranks of target groups send and take blocks of prefilled prompts
// (target_worker/block_exchange.h): in one process by in-memory queues.
#pragma once

#include <deque>
#include <memory>

#include "comm/transport.h"
#include "start/settings.h"
#include "target_worker/block_exchange.h"

namespace outrider {

// A rank's end. Empty: no group of the run only prefills.
struct BlockEnd {
  BlockSender::Connect connect;      // in a group that only prefills
  std::shared_ptr<Transport> inbox;  // in a group that decodes
  uint64_t inbox_name = 0;           // the same on all its ranks
};

// The ends of all target ranks of this process. Groups that only prefill come first.
class LocalBlockEnds {
 public:
  explicit LocalBlockEnds(const ModelSettings& models);
  // Once for each rank.
  BlockEnd end(int group, int rank) const;

 private:
  const int prefill_groups_, ranks_;
  std::vector<std::shared_ptr<InprocHub>> hubs_;  // of the ranks of groups that decode
};

}  // namespace outrider
