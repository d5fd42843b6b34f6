// Keys and values in host memory, in the layout the CPU attention kernel reads (KvLayerView).
#pragma once

#include <vector>

#include "base/buffer.h"
#include "transformer/kv/kv_cache.h"
#include "transformer/ops/cpu/cpu_ops.h"

namespace outrider {

class CpuKvStorage final : public KvStorage {
 public:
  CpuKvStorage(const KvShape& shape, int64_t num_blocks);

  KvLayerView layer(int64_t index) const;

  void copy_block(int32_t from, int32_t to) override;
  void copy_slots(std::span<const KvMove> moves) override;
  uint64_t content_hash(std::span<const int32_t> blocks, int64_t length) const override;

 private:
  int64_t key_bytes() const;    // of one block in one layer
  int64_t value_bytes() const;  // of one block in one layer

  KvShape shape_;
  mutable std::vector<Buffer<std::byte>> keys_, values_;  // per layer, [num_blocks, ...] as KvLayerView says
};

}  // namespace outrider
