// Paged key/value cache of one model shard. Sequences own block tables; blocks are reference counted, so a
// fork shares its prefix and a block with more than one owner is copied before it is written. Everything is
// planned at start-up: the pool is fixed and append() is the only place that can run out. A deterministic
// state machine: the same calls give the same tables on every rank. One thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/status.h"
#include "base/types.h"
#include "transformer/ops/cpu_ops.h"

namespace outrider {

struct KvShape {
  int64_t layers = 0;
  int64_t kv_heads = 0;  // of this rank
  int64_t head_dim = 0;
  KvType type = KvType::kFloat32;
  int64_t block_bytes() const;  // keys and values of one block in all layers
};

// A sequence inside one KvCache; local to it.
struct KvHandle {
  int32_t index = -1;
  bool operator==(const KvHandle&) const = default;
};

class KvCache {
 public:
  KvCache(const KvShape& shape, int64_t num_blocks);

  KvHandle create();
  KvHandle fork(KvHandle parent);  // shares every block, copy-on-write
  void release(KvHandle handle);   // the handle is dead afterwards

  // Makes room for `count` more tokens. kResourceExhausted leaves the sequence as it was.
  Status append(KvHandle handle, int64_t count);
  // Forgets everything at positions >= length. Repeating it is a no-op; longer than the sequence is an error
  // of ours.
  void truncate(KvHandle handle, int64_t length);
  // After a tree: the KV of `slots` (ascending positions >= length) moves to positions length, length + 1,
  // ...; the rest of the tail is forgotten.
  void compact(KvHandle handle, int64_t length, std::span<const int64_t> slots);

  int64_t length(KvHandle handle) const { return sequence(handle).length; }
  const int32_t* block_table(KvHandle handle) const { return sequence(handle).blocks.data(); }

  KvLayerView layer(int64_t index);
  void store(int64_t layer_index, KvHandle handle, int64_t position, int64_t kv_head,
             std::span<const float> key, std::span<const float> value);

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

  Sequence& sequence(KvHandle handle);
  const Sequence& sequence(KvHandle handle) const;
  int32_t take_block();
  void drop_block(int32_t block);
  void copy_block(int32_t from, int32_t to);
  void copy_token(int32_t from_block, int64_t from_slot, int32_t to_block, int64_t to_slot);
  int64_t key_elements() const { return shape_.kv_heads * shape_.head_dim * kBlockTokens; }
  int64_t value_elements() const { return shape_.kv_heads * round_up(shape_.head_dim, 16) * kBlockTokens; }
  int64_t element_bytes() const { return shape_.type == KvType::kBFloat16 ? 2 : 4; }

  KvShape shape_;
  std::vector<Buffer<std::byte>> keys_, values_;  // per layer, [num_blocks, ...] as KvLayerView says
  std::vector<int32_t> references_;               // per block
  std::vector<int32_t> free_;                     // a stack: the last freed is the first used again
  std::vector<Sequence> sequences_;
};

}  // namespace outrider
