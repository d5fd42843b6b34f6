// Moves keys and values of prefilled prompts from a target group that only prefills to the group that decodes
// them: from each rank to the same rank there, as KvBlocks beside the coordinator. Blocks are named by all
// that their bits depend on, so blocks of another text, model or rank are never taken in. Anything lost costs
// time only: the prompt is computed where its blocks are missing. One thread for each object.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/hash.h"
#include "comm/messages/row_transfers.h"
#include "comm/messages/verifying.h"
#include "comm/transport.h"
#include "model/kv/kv_cache.h"

namespace outrider {

// The blocks of one rank depend on the text before their end and on this.
struct BlockSource {
  uint64_t model = 0;  // fingerprint
  int rank = 0, ranks = 1;
};

constexpr int64_t kBlockPartBytes = int64_t{1} << 20;  // of a message at most, unless one block is larger

// Names blocks of one text by the text up to their end. Ends only grow, so each token is hashed once.
class BlockNames {
 public:
  explicit BlockNames(const BlockSource& source) : source_(source) {}
  uint64_t up_to(std::span<const TokenId> ids, int32_t end);
  int64_t hashed() const { return tokens_; }

 private:
  BlockSource source_;
  int64_t tokens_ = 0;
  uint64_t hash_ = kEmptyPrefixHash;
};

struct BlockSenderOptions {
  BlockSource source;
  std::chrono::milliseconds pause{30'000};  // before an inbox that was out of reach is tried again
  std::function<Clock::time_point()> now = Clock::now;
};

// On each rank of a group that only prefills.
class BlockSender {
 public:
  // Connects to this rank's counterpart in the group with this inbox (Hello::block_inbox).
  using Connect = std::function<Result<std::unique_ptr<Transport>>(uint64_t inbox)>;
  BlockSender(Connect connect, BlockSenderOptions options)
      : connect_(std::move(connect)), options_(std::move(options)) {}

  // Sends whole blocks of a sequence with this text. Until the deadline waits for an inbox that is full.
  // Returns the number of bytes, 0 where that failed.
  int64_t send(const BlockExport& blocks, std::span<const TokenId> ids, const KvCache& kv, KvHandle sequence,
               Clock::time_point deadline);

  int64_t tokens_hashed() const { return tokens_hashed_; }

 private:
  struct Connection {
    std::unique_ptr<Transport> transport;  // null: out of reach until `again`
    Clock::time_point again;
  };
  Transport* to(uint64_t inbox);
  Status send_part(Transport& transport, const KvBlocks& part, Clock::time_point deadline) const;

  const Connect connect_;
  const BlockSenderOptions options_;
  // By inbox. A broken one is kept, because it reconnects by itself and may hold parts of earlier prompts.
  std::map<uint64_t, Connection> connections_;
  int64_t tokens_hashed_ = 0;
};

struct BlockInboxOptions {
  BlockSource source;
  int64_t block_bytes = 0;
  int64_t most_bytes = 0;                   // kept at once; beyond, the oldest transfers are dropped
  std::chrono::milliseconds keeps{60'000};  // a transfer of which nothing more comes
};

// On each rank of a group that decodes.
class BlockInbox {
 public:
  BlockInbox(std::shared_ptr<Transport> endpoint, const BlockInboxOptions& options)
      : endpoint_(std::move(endpoint)), options_(options) {}

  // Takes what has arrived.
  void look();
  // Whether all blocks of a text are here; until the deadline waits for them.
  bool has(const BlockImport& blocks, std::span<const TokenId> ids, Clock::time_point deadline);
  // Writes blocks that are here into a sequence that has room for them, and drops the transfer.
  void take(const BlockImport& blocks, KvCache& kv, KvHandle sequence);

  int64_t bytes() const { return bytes_; }
  int64_t tokens_hashed() const { return tokens_hashed_; }

 private:
  // The parts of a transfer that were compared with the text of one sequence.
  struct Check {
    SequenceId sequence;
    int32_t begin = 0, next = 0;  // blocks [begin, next) are here and of this text
    BlockNames names;             // up to `next`
    bool is_other = false;        // the part at `next` is of another text, model or rank
  };
  struct Transfer {
    std::map<int32_t, KvBlocks> parts;  // by first block; no two have a block in common
    Clock::time_point last;             // when something of it came
    std::optional<Check> check = {};
    bool was_found = false;  // has() said so since the last look(): stays for take()
  };
  bool receive(Clock::time_point deadline);
  void receive_queued(Clock::time_point deadline);
  void put(KvBlocks part);
  std::map<uint64_t, Transfer>::iterator drop(std::map<uint64_t, Transfer>::iterator at);
  bool is_whole(const BlockImport& blocks, std::span<const TokenId> ids);

  const std::shared_ptr<Transport> endpoint_;
  const BlockInboxOptions options_;
  std::map<uint64_t, Transfer> transfers_;  // by number
  int64_t bytes_ = 0;                       // of all
  int64_t tokens_hashed_ = 0;
};

}  // namespace outrider
