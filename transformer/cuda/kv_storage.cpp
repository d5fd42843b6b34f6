#include "transformer/cuda/kv_storage.h"

#include <algorithm>
#include <cstring>

#include "base/hash.h"

namespace outrider::cuda {

DeviceKvStorage::DeviceKvStorage(const KvShape& shape, int64_t num_blocks, int device, StreamView stream)
    : shape_(shape), device_(device), stream_(stream) {
  for (int64_t i = 0; i < shape.layers; ++i) {
    keys_.emplace_back(num_blocks * block_bytes());
    values_.emplace_back(num_blocks * block_bytes());
  }
}

int64_t DeviceKvStorage::bytes_for(const KvShape& shape, int64_t num_blocks) {
  return 2 * shape.layers * num_blocks * shape.kv_heads * kBlockTokens * shape.head_dim *
         outrider::element_bytes(shape.type);
}

int64_t DeviceKvStorage::block_bytes() const {
  return shape_.kv_heads * kBlockTokens * shape_.head_dim * outrider::element_bytes(shape_.type);
}

KvLayer DeviceKvStorage::layer(int64_t index) const {
  return {.type = shape_.type,
          .keys = keys_[static_cast<size_t>(index)].data(),
          .values = values_[static_cast<size_t>(index)].data(),
          .kv_heads = static_cast<int32_t>(shape_.kv_heads),
          .head_dim = static_cast<int32_t>(shape_.head_dim)};
}

void DeviceKvStorage::copy_block(int32_t from, int32_t to) {
  use_device(device_);
  for (int64_t i = 0; i < shape_.layers; ++i) copy_kv_block(stream_, layer(i), from, to);
}

void DeviceKvStorage::copy_token(KvSlot from, KvSlot to) {
  use_device(device_);
  for (int64_t i = 0; i < shape_.layers; ++i)
    copy_kv_token(stream_, layer(i), from.block, static_cast<int32_t>(from.slot), to.block,
                  static_cast<int32_t>(to.slot));
}

uint64_t DeviceKvStorage::content_hash(std::span<const int32_t> blocks, int64_t length) const {
  const int64_t row_bytes = shape_.head_dim * outrider::element_bytes(shape_.type);
  use_device(device_);
  std::vector<std::byte> block(static_cast<size_t>(block_bytes()));
  uint64_t hash = 0;
  const auto add = [&](const DeviceBuffer<std::byte>& memory, int32_t id, int64_t tokens) {
    copy(block.data(), memory.data() + id * block_bytes(), block_bytes(), stream_);
    stream_.synchronize();
    for (int64_t h = 0; h < shape_.kv_heads; ++h)
      for (int64_t i = 0; i < tokens * row_bytes; i += 2) {
        uint16_t bits = 0;
        std::memcpy(&bits, block.data() + h * kBlockTokens * row_bytes + i, sizeof bits);
        hash = hash_combine(hash, bits);
      }
  };
  for (size_t l = 0; l < keys_.size(); ++l)
    for (int64_t p = 0; p < length; p += kBlockTokens) {
      const int32_t id = blocks[static_cast<size_t>(p / kBlockTokens)];
      const int64_t tokens = std::min(kBlockTokens, length - p);
      add(keys_[l], id, tokens);
      add(values_[l], id, tokens);
    }
  return hash;
}

}  // namespace outrider::cuda
