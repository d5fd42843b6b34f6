// Paged key/value cache of one model shard. This class keeps the block tables; the storage owns the blocks'
// memory. Sequences own block tables. Blocks are reference counted, so a fork shares its prefix, and a block
// with more than one owner is copied before it is written. Everything is planned at start-up: the pool is
// fixed, and only append() and keep_path() can run out of blocks. A deterministic state machine: the same
// calls give the same tables on every rank and on every back-end. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/kv_shape.h"
#include "base/status.h"
#include "base/types.h"

namespace outrider {

// A sequence inside one KvCache; local to it.
struct KvHandle {
  int32_t index = -1;
  bool operator==(const KvHandle&) const = default;
};

// A cached prompt prefix, kept beside the sequences. The index is local to its KvCache.
struct KvPrefix {
  int32_t index = -1;
  bool operator==(const KvPrefix&) const = default;
};

// One token's place in the pool.
struct KvSlot {
  int32_t block = 0;
  int64_t slot = 0;  // in the block
};

struct KvMove {
  KvSlot from, to;
};

// A call, outside of forward passes, that changed which tokens a cache holds.
struct KvCall {
  enum class Kind : uint8_t { kCreate, kFork, kRelease, kTruncate } kind = Kind::kCreate;
  KvHandle handle = {};
  int64_t length = 0;  // with kTruncate
};

// The keys and values of all layers: host or device memory. A device storage orders its copies with the
// kernels by its stream.
class KvStorage {
 public:
  virtual ~KvStorage() = default;
  virtual void copy_block(int32_t from, int32_t to) = 0;
  // Moves the keys and values of one token each, in this order: a later move may read or write the slot of an
  // earlier one.
  virtual void copy_slots(std::span<const KvMove> moves) = 0;
  // Hash of keys and values of positions [0, length): equal iff bitwise equal content.
  virtual uint64_t content_hash(std::span<const int32_t> blocks, int64_t length) const = 0;
  // One block of all layers, as bytes that a storage of the same back-end and shape takes in. 0 bytes: this
  // storage cannot.
  virtual int64_t block_bytes() const { return 0; }
  virtual void read_block(int32_t, std::span<std::byte>) const {}
  virtual void write_block(int32_t, std::span<const std::byte>) {}
};

class KvCache {
 public:
  KvCache(std::unique_ptr<KvStorage> storage, int64_t num_blocks);

  // Divides the blocks among users of this cache: the limit of blocks for all sequences of each user. Without
  // it one user has all blocks. Must come before the first sequence.
  void divide(std::vector<int64_t> blocks_of_users);
  // Sequences that are created from now on belong to this user, and so do their forks.
  void use_as(size_t user);

  KvHandle create();
  KvHandle fork(KvHandle parent);  // shares every block, copy-on-write
  void release(KvHandle handle);   // the handle is dead afterwards

  // Shares the blocks of the first `length` tokens. The prefix outlives the sequence.
  KvPrefix keep(KvHandle handle, int64_t length);
  // Forgets the tokens behind the first `length`; 0 releases the prefix.
  void cut(KvPrefix prefix, int64_t length);
  // Creates a sequence from the first `length` tokens of a prefix, and shares the blocks, copy-on-write.
  KvHandle create(KvPrefix prefix, int64_t length);
  int64_t length(KvPrefix prefix) const { return kept(prefix).length; }

  // Makes room for `count` more tokens. kResourceExhausted leaves the sequence as it was.
  Status append(KvHandle handle, int64_t count);
  // Forgets everything at positions >= length. Repeating it is a no-op; a length beyond the sequence is a
  // programming error.
  void truncate(KvHandle handle, int64_t length);

  // Notes that something was computed of the first `length` tokens, which stays right while they do. Returns
  // a number that no other call returns.
  uint64_t settle(KvHandle handle, int64_t length);
  // What the last settle() returned, and how many of its tokens have stayed. A fork begins with those of its
  // parent; a new sequence has 0 and 0.
  uint64_t settle_mark(KvHandle handle) const { return sequence(handle).settle_mark; }
  int64_t settled(KvHandle handle) const { return sequence(handle).settled; }

  // After a tree whose first node has slot `base` (BatchSlice::parents): keeps the nodes of one path from the
  // top, nodes[i] in slot base + nodes[i], moves them to slots base + i and forgets the others. The content
  // equals that of a fresh prefill of the path. Nodes that do not ascend or do not exist are a programming
  // error. kResourceExhausted leaves the sequence as it was; the call needs blocks only where a later fork
  // shares the slots that move.
  Status keep_path(KvHandle handle, int64_t base, std::span<const int32_t> nodes);

  // Blocks as bytes, for the same sequence in another cache of the same back-end and shape (KvStorage).
  int64_t block_bytes() const { return storage_->block_bytes(); }
  // Whole blocks from number `first` on, until `to` is full.
  void read_blocks(KvHandle handle, int64_t first, std::span<std::byte> to) const;
  // Writes over whole blocks of a sequence, of its own: append() made room for them.
  void write_blocks(KvHandle handle, int64_t first, std::span<const std::byte> from);

  // Length in tokens; after a tree, all its nodes count.
  int64_t length(KvHandle handle) const { return sequence(handle).length; }
  const int32_t* block_table(KvHandle handle) const { return sequence(handle).blocks.data(); }
  // The slot of a position; within a tree, the slot of the node appended there.
  KvSlot slot(KvHandle handle, int64_t index) const {
    return {block_table(handle)[index / kBlockTokens], index % kBlockTokens};
  }

  // Appends create(), fork(), release() and truncate() to `calls` from now on, so that other ranks can replay
  // them; keep() and keep_path() must not be called then. `calls` must outlive the cache.
  void record(std::vector<KvCall>& calls) { calls_ = &calls; }
  void replay(const KvCall& call);

  int64_t free_blocks() const { return static_cast<int64_t>(free_.size()); }
  int64_t num_blocks() const { return static_cast<int64_t>(references_.size()); }
  // Checks that reference counts match the tables, that free blocks have no references, and that every block
  // is either free or referenced.
  Status check_invariants() const;
  // Hash of keys and values of [0, length) of one sequence: equal iff bitwise equal content.
  uint64_t content_hash(KvHandle handle) const;

 private:
  struct Sequence {
    std::vector<int32_t> blocks;
    int64_t length = 0;
    bool open = false;
    size_t user = 0;
    int64_t settled = 0;
    uint64_t settle_mark = 0;
  };
  struct User {
    int64_t most = 0, used = 0;  // blocks; a block with several owners counts once
  };

  // A prefix never grows, so its table takes no more than it needs.
  struct Kept {
    std::vector<int32_t> blocks;
    int64_t length = 0;  // 0: free
  };

  Sequence& sequence(KvHandle handle);
  const Sequence& sequence(KvHandle handle) const;
  const Kept& kept(KvPrefix prefix) const;
  KvHandle open_sequence();
  void shorten(KvHandle handle, int64_t length);
  void note(KvCall call) {
    if (calls_) calls_->push_back(call);
  }
  Status check_free(size_t user, int64_t needed) const;
  int32_t take_block(size_t user);
  void drop_block(int32_t block);
  void drop_blocks_behind(std::vector<int32_t>& blocks, int64_t length);
  bool is_shared(int32_t block) const { return references_[static_cast<size_t>(block)] > 1; }
  // Replaces a block that has other owners by a copy. A free block must exist.
  void make_own(size_t user, int32_t& block);

  std::unique_ptr<KvStorage> storage_;
  std::vector<int32_t> references_;  // per block
  std::vector<User> users_;
  std::vector<uint8_t> taken_by_;    // per block, while it has references
  size_t user_ = 0;                  // the present one
  std::vector<int32_t> free_;        // a stack: the last freed is the first used again
  std::vector<Sequence> sequences_;
  std::vector<Kept> kept_;
  std::vector<int32_t> free_kept_;  // places in kept_
  std::vector<KvMove> moves_;       // of keep_path
  uint64_t settle_calls_ = 0;
  std::vector<KvCall>* calls_ = nullptr;
};

}  // namespace outrider
