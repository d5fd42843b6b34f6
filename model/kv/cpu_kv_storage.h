// Keys and values in host memory, in the layout the CPU attention kernel reads (KvLayerView), and states of
// the same tokens, which share their blocks: what becomes of a token's keys becomes of its states.
#pragma once

#include <vector>

#include "base/buffer.h"
#include "kernels/cpu/cpu_ops.h"
#include "model/kv/kv_cache.h"

namespace outrider {

class CpuKvStorage final : public KvStorage {
 public:
  CpuKvStorage(const KvShape& shape, int64_t num_blocks);

  const KvShape& shape() const { return shape_; }
  KvLayerView layer(int64_t index) const;

  // One token's keys and values from another storage of the same heads, in the layers that both have, and its
  // states.
  void copy_token(const CpuKvStorage& from, const KvSlot& at, const KvSlot& to);

  // Writes elements [first, first + size) of a token's hidden state; read_hidden_state fills `to` with the
  // whole state.
  void store_hidden_state(const KvSlot& at, int64_t first, std::span<const float> numbers);
  void read_hidden_state(const KvSlot& at, std::span<float> to) const;

  void copy_block(int32_t from, int32_t to) override;
  void copy_slots(std::span<const KvMove> moves) override;
  uint64_t content_hash(std::span<const int32_t> blocks, int64_t length) const override;
  int64_t block_bytes() const override;
  void read_block(int32_t block, std::span<std::byte> to) const override;
  void write_block(int32_t block, std::span<const std::byte> from) override;

 private:
  KvLayerView layer_shape(int64_t index) const;  // without memory
  int64_t key_bytes(int64_t layer) const;        // of one block
  int64_t value_bytes(int64_t layer) const;      // of one block
  int64_t hidden_state_bytes() const;            // of one token
  // Calls `each` with the memory of every part of a block, in one order: keys and values of each layer, then
  // hidden states.
  template <class Each>
  void for_each_part(int32_t block, const Each& each) const;
  std::byte* state(const KvSlot& at) const {
    return hidden_states_.data() + (at.block * kBlockTokens + at.slot) * hidden_state_bytes();
  }

  KvShape shape_;
  mutable std::vector<Buffer<std::byte>> keys_, values_;  // per layer, [num_blocks, ...] as KvLayerView says
  mutable Buffer<std::byte> hidden_states_;               // [num_blocks][kBlockTokens][hidden_state_size]
};

}  // namespace outrider
