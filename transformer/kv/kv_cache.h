// Paged key/value cache of one model shard: the block tables, and whose memory the blocks are is the
// storage's business. Sequences own block tables; blocks are reference counted, so a fork shares its prefix
// and a block with more than one owner is copied before it is written. Everything is planned at start-up: the
// pool is fixed, and append() and keep_path() alone can run out. A deterministic state machine: the same
// calls give the same tables on every rank and on every back-end. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "transformer/kv/kv_shape.h"

namespace outrider {

// A sequence inside one KvCache; local to it.
struct KvHandle {
  int32_t index = -1;
  bool operator==(const KvHandle&) const = default;
};

// What a sequence began with, kept beside the sequences; local to its KvCache.
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

// A call that changed which tokens a cache holds; those of forward passes apart.
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
  // One token's keys and values each, in this order: a later move may read or write what an earlier one did.
  virtual void copy_slots(std::span<const KvMove> moves) = 0;
  // Hash of keys and values of positions [0, length): equal iff bitwise equal content.
  virtual uint64_t content_hash(std::span<const int32_t> blocks, int64_t length) const = 0;
};

class KvCache {
 public:
  KvCache(std::unique_ptr<KvStorage> storage, int64_t num_blocks);

  KvHandle create();
  KvHandle fork(KvHandle parent);  // shares every block, copy-on-write
  void release(KvHandle handle);   // the handle is dead afterwards

  // Shares the blocks of the first `length` tokens, which go on to exist when the sequence is released.
  KvPrefix keep(KvHandle handle, int64_t length);
  // Forgets what is behind `length` tokens; with 0 the prefix is dead afterwards.
  void cut(KvPrefix prefix, int64_t length);
  // A sequence of the first `length` tokens, whose blocks it shares, copy-on-write.
  KvHandle create(KvPrefix prefix, int64_t length);
  int64_t length(KvPrefix prefix) const { return kept(prefix).length; }

  // Makes room for `count` more tokens. kResourceExhausted leaves the sequence as it was.
  Status append(KvHandle handle, int64_t count);
  // Forgets everything at positions >= length. Repeating it is a no-op; longer than the sequence is an error
  // of ours.
  void truncate(KvHandle handle, int64_t length);

  // After a tree whose first node has slot `base` (BatchSlice::parents): keeps the nodes of one path from the
  // top, nodes[i] in slot base + nodes[i], moves them to slots base + i and forgets the others. The content
  // is that of a fresh prefill of the path. Nodes that do not ascend, or are not there, are an error of ours.
  // kResourceExhausted leaves the sequence as it was; it takes blocks only where a fork made since then
  // shares what is moved.
  Status keep_path(KvHandle handle, int64_t base, std::span<const int32_t> nodes);

  // Tokens; behind a tree, all its nodes among them.
  int64_t length(KvHandle handle) const { return sequence(handle).length; }
  const int32_t* block_table(KvHandle handle) const { return sequence(handle).blocks.data(); }
  // Where a position lies; within a tree, the node that was appended there.
  KvSlot slot(KvHandle handle, int64_t index) const {
    return {block_table(handle)[index / kBlockTokens], index % kBlockTokens};
  }

  // From now on create(), fork(), release() and truncate() are appended to `calls`, so that other ranks can
  // replay them; nothing may be kept, and no path. It must outlive the cache.
  void record(std::vector<KvCall>& calls) { calls_ = &calls; }
  void replay(const KvCall& call);

  int64_t free_blocks() const { return static_cast<int64_t>(free_.size()); }
  int64_t num_blocks() const { return static_cast<int64_t>(references_.size()); }
  // Sum of references equals those of the tables, free blocks have none, nothing is both or neither.
  Status check_invariants() const;
  // Hash of keys and values of [0, length) of one sequence: equal iff bitwise equal content.
  uint64_t content_hash(KvHandle handle) const;

 private:
  struct Sequence {
    std::vector<int32_t> blocks;
    int64_t length = 0;
    bool open = false;
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
  Status check_free(int64_t needed) const;
  int32_t take_block();
  void drop_block(int32_t block);
  void drop_blocks_behind(std::vector<int32_t>& blocks, int64_t length);
  bool is_shared(int32_t block) const { return references_[static_cast<size_t>(block)] > 1; }
  // Puts a copy in the place of a block with other owners; there is a free one.
  void make_own(int32_t& block);

  std::unique_ptr<KvStorage> storage_;
  std::vector<int32_t> references_;  // per block
  std::vector<int32_t> free_;        // a stack: the last freed is the first used again
  std::vector<Sequence> sequences_;
  std::vector<Kept> kept_;
  std::vector<int32_t> free_kept_;  // places in kept_
  std::vector<KvMove> moves_;       // of keep_path
  std::vector<KvCall>* calls_ = nullptr;
};

}  // namespace outrider
