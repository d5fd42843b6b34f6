#include "transformer/kv/cuda_kv_storage.h"

#include <algorithm>
#include <cstring>

#include "base/hash.h"

namespace outrider::cuda {
namespace {

KvLayer layer_of(const KvShape& shape) {
  return {.type = shape.type,
          .kv_heads = static_cast<int32_t>(shape.kv_heads),
          .head_dim = static_cast<int32_t>(shape.head_dim)};
}

// Keys of one block in one layer; as many for the values.
int64_t bytes_of_block(const KvShape& shape) {
  return layer_of(shape).block_elements() * outrider::element_bytes(shape.type);
}

}  // namespace

DeviceKvStorage::DeviceKvStorage(const KvShape& shape, int64_t num_blocks, int device, StreamView stream)
    : shape_(shape), device_(device), stream_(stream), layers_(shape.layers) {
  for (int64_t i = 0; i < shape.layers; ++i) {
    keys_.emplace_back(num_blocks * bytes_of_block(shape));
    values_.emplace_back(num_blocks * bytes_of_block(shape));
  }
  std::vector<KvLayer> layers;
  for (int64_t i = 0; i < shape.layers; ++i) layers.push_back(layer(i));
  copy(layers_.data(), layers.data(), shape.layers, stream_);
  stream_.synchronize();
}

int64_t DeviceKvStorage::bytes_for(const KvShape& shape, int64_t num_blocks) {
  return 2 * shape.layers * num_blocks * bytes_of_block(shape);
}

KvLayer DeviceKvStorage::layer(int64_t index) const {
  KvLayer layer = layer_of(shape_);
  layer.keys = keys_[static_cast<size_t>(index)].data();
  layer.values = values_[static_cast<size_t>(index)].data();
  return layer;
}

void DeviceKvStorage::copy_block(int32_t from, int32_t to) {
  use_device(device_);
  for (int64_t i = 0; i < shape_.layers; ++i) copy_kv_block(stream_, layer(i), from, to);
}

void DeviceKvStorage::copy_slots(std::span<const KvMove> moves) {
  use_device(device_);
  for (size_t first = 0; first < moves.size(); first += KvMoves::kMost) {
    KvMoves some;
    for (const KvMove& move : moves.subspan(first, std::min<size_t>(KvMoves::kMost, moves.size() - first)))
      some.moves[some.count++] = {move.from.block, static_cast<int32_t>(move.from.slot), move.to.block,
                                  static_cast<int32_t>(move.to.slot)};
    move_kv_slots(stream_, layer_of(shape_), layers_.data(), shape_.layers, some);
  }
}

uint64_t DeviceKvStorage::content_hash(std::span<const int32_t> blocks, int64_t length) const {
  const KvLayer layer = layer_of(shape_);
  const int64_t element = outrider::element_bytes(shape_.type), bytes = bytes_of_block(shape_);
  use_device(device_);
  std::vector<std::byte> keys(static_cast<size_t>(bytes)), values(static_cast<size_t>(bytes));
  uint64_t hash = 0;
  const auto add = [&](const std::vector<std::byte>& memory, int64_t offset) {
    uint32_t bits = 0;
    std::memcpy(&bits, memory.data() + offset * element, static_cast<size_t>(element));
    hash = hash_combine(hash, bits);
  };
  for (size_t l = 0; l < keys_.size(); ++l)
    for (int64_t p = 0; p < length; p += kBlockTokens) {
      const int64_t from = blocks[static_cast<size_t>(p / kBlockTokens)] * bytes;
      copy(keys.data(), keys_[l].data() + from, bytes, stream_);
      copy(values.data(), values_[l].data() + from, bytes, stream_);
      stream_.synchronize();
      const auto tokens = static_cast<int32_t>(std::min(kBlockTokens, length - p));
      for (int32_t h = 0; h < layer.kv_heads; ++h)
        for (int32_t t = 0; t < tokens; ++t)
          for (int32_t i = 0; i < layer.head_dim; ++i) {
            add(keys, layer.key_offset(0, h, t, i));
            add(values, layer.value_offset(0, h, t, i));
          }
    }
  return hash;
}

}  // namespace outrider::cuda
