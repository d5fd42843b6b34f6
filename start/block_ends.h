// The ends through which ranks of target groups send and take blocks of prefilled prompts
// (target_worker/block_exchange.h): in one process by in-memory queues.
#pragma once

#include <deque>
#include <memory>

#include "comm/transport.h"
#include "start/prepare.h"
#include "start/settings.h"
#include "target_worker/block_exchange.h"

namespace outrider {

// A rank's end. Empty: no group of the run only prefills.
struct BlockEnd {
  BlockSender::Connect connect;      // in a group that only prefills
  std::shared_ptr<Transport> inbox;  // in a group that decodes
  uint64_t inbox_name = 0;           // the same on all its ranks
};

// Bytes of blocks that a rank may have unread, and a sender unsent; a sender waits then.
constexpr int64_t kMostUnreadBlockBytes = int64_t{256} << 20;
// The same in messages, for each sender of a rank.
int block_queue_limit(const ModelSettings& models, const Preparation& prepared);

// Bytes of blocks that a rank has read and not used: 1 GiB, or the longest text if that is more. Beyond, the
// oldest prompts are computed where they are decoded. All are in host memory, also those of a GPU.
int64_t block_inbox_bytes(const KvCache& kv, int64_t max_context);

// The ends of all target ranks of this process. Groups that only prefill come first.
class LocalBlockEnds {
 public:
  LocalBlockEnds(const ModelSettings& models, const Preparation& prepared);
  // Once for each rank.
  BlockEnd end(int group, int rank) const;

 private:
  const int prefill_groups_, ranks_;
  std::vector<std::shared_ptr<InprocHub>> hubs_;  // of the ranks of groups that decode
};

}  // namespace outrider
