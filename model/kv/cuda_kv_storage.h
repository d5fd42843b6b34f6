// Keys and values in device memory, and states of the same tokens, which share their blocks; the block tables
// stay on the host (KvCache). Copies are ordered with the kernels by the model's stream.
#pragma once

#include <vector>

#include "base/cuda.h"
#include "kernels/cuda/cuda_ops.h"
#include "model/kv/kv_cache.h"

namespace outrider::cuda {

class DeviceKvStorage final : public KvStorage {
 public:
  // On the current device. latent_dim: KvLayer's of layers with attention, 0 where values are stored.
  DeviceKvStorage(const KvShape& shape, int64_t latent_dim, int64_t num_blocks, int device,
                  StreamView stream);

  KvLayer layer(int64_t index) const;
  HiddenStateRows hidden_states() const;
  // Waits for the stream.
  void read_hidden_state(const KvSlot& at, std::span<float> to) const;
  static int64_t bytes_for(const KvShape& shape, int64_t latent_dim, int64_t num_blocks);

  void copy_block(int32_t from, int32_t to) override;
  void copy_slots(std::span<const KvMove> moves) override;
  // Brings the blocks to the host: for tests.
  uint64_t content_hash(std::span<const int32_t> blocks, int64_t length) const override;
  int64_t block_bytes() const override;
  // Both wait for the stream.
  void read_block(int32_t block, std::span<std::byte> to) const override;
  void write_block(int32_t block, std::span<const std::byte> from) override;

 private:
  // As CpuKvStorage::for_each_part, in device memory.
  template <class Each>
  void for_each_part(int32_t block, const Each& each) const;

  KvShape shape_;
  int64_t latent_dim_;
  int device_;
  StreamView stream_;
  // Per layer, as kv_layout.h says; values are empty where there are none.
  std::vector<DeviceBuffer<std::byte>> keys_, values_;
  DeviceBuffer<std::byte> hidden_states_;      // HiddenStateRows
  PinnedBuffer<std::byte> hidden_state_room_;  // of one token
  DeviceBuffer<KvLayer> layers_;               // for kernels that work on all layers at once
};

}  // namespace outrider::cuda
