#include "model/kv/cuda_kv_storage.h"

#include <algorithm>
#include <cstring>

#include "base/hash.h"

namespace outrider::cuda {
namespace {

// Layer `index`, without memory. What a short convolution reads is the key of an only head, without a value.
KvLayer layer_of(const KvShape& shape, int64_t latent_dim, int64_t index) {
  if (shape.keeps_row(index))
    return {.type = shape.type,
            .kv_heads = shape.row_size > 0 ? 1 : 0,
            .head_dim = static_cast<int32_t>(shape.row_size),
            .latent_dim = static_cast<int32_t>(shape.row_size)};
  return {.type = shape.type,
          .kv_heads = static_cast<int32_t>(shape.kv_heads),
          .head_dim = static_cast<int32_t>(shape.head_dim),
          .latent_dim = static_cast<int32_t>(latent_dim)};
}

// Keys of one block; as many for the values, where there are any.
int64_t bytes_of_block(const KvLayer& layer) {
  return layer.block_elements() * outrider::element_bytes(layer.type);
}

// Bytes of one token's hidden states.
int64_t hidden_state_bytes(const KvShape& shape) {
  return shape.hidden_state_size * outrider::element_bytes(shape.type);
}

}  // namespace

DeviceKvStorage::DeviceKvStorage(const KvShape& shape, int64_t latent_dim, int64_t num_blocks, int device,
                                 StreamView stream)
    : shape_(shape),
      latent_dim_(latent_dim),
      device_(device),
      stream_(stream),
      hidden_states_(num_blocks * kBlockTokens * hidden_state_bytes(shape)),
      hidden_state_room_(hidden_state_bytes(shape)),
      layers_(shape.layers) {
  for (int64_t i = 0; i < shape.layers; ++i) {
    const KvLayer own = layer_of(shape, latent_dim, i);
    keys_.emplace_back(num_blocks * bytes_of_block(own));
    values_.emplace_back(own.has_values() ? num_blocks * bytes_of_block(own) : 0);
  }
  std::vector<KvLayer> layers;
  for (int64_t i = 0; i < shape.layers; ++i) layers.push_back(layer(i));
  copy(layers_.data(), layers.data(), shape.layers, stream_);
  stream_.synchronize();
}

int64_t DeviceKvStorage::bytes_for(const KvShape& shape, int64_t latent_dim, int64_t num_blocks) {
  int64_t layers = 0;
  for (int64_t i = 0; i < shape.layers; ++i) {
    const KvLayer own = layer_of(shape, latent_dim, i);
    layers += (own.has_values() ? 2 : 1) * bytes_of_block(own);
  }
  return num_blocks * (layers + kBlockTokens * hidden_state_bytes(shape));
}

HiddenStateRows DeviceKvStorage::hidden_states() const {
  return {.type = shape_.type, .data = hidden_states_.data(), .size = shape_.hidden_state_size};
}

void DeviceKvStorage::read_hidden_state(const KvSlot& at, std::span<float> to) const {
  use_device(device_);
  const int64_t bytes = hidden_state_bytes(shape_);
  copy(hidden_state_room_.data(), hidden_states_.data() + (at.block * kBlockTokens + at.slot) * bytes, bytes,
       stream_);
  stream_.synchronize();
  if (shape_.type == KvType::kFloat32) {
    std::memcpy(to.data(), hidden_state_room_.data(), to.size_bytes());
    return;
  }
  const auto* const from = reinterpret_cast<const bf16*>(hidden_state_room_.data());
  std::transform(from, from + to.size(), to.begin(), [](bf16 x) { return to_float(x); });
}

KvLayer DeviceKvStorage::layer(int64_t index) const {
  KvLayer layer = layer_of(shape_, latent_dim_, index);
  layer.keys = keys_[static_cast<size_t>(index)].data();
  if (layer.has_values()) layer.values = values_[static_cast<size_t>(index)].data();
  return layer;
}

void DeviceKvStorage::copy_block(int32_t from, int32_t to) {
  use_device(device_);
  for (int64_t i = 0; i < shape_.layers; ++i) copy_kv_block(stream_, layer(i), from, to);
  const int64_t bytes = kBlockTokens * hidden_state_bytes(shape_);
  if (bytes > 0)
    copy(hidden_states_.data() + to * bytes, hidden_states_.data() + from * bytes, bytes, stream_);
}

void DeviceKvStorage::copy_slots(std::span<const KvMove> moves) {
  use_device(device_);
  for (size_t first = 0; first < moves.size(); first += KvMoves::kMost) {
    KvMoves some;
    for (const KvMove& move : moves.subspan(first, std::min<size_t>(KvMoves::kMost, moves.size() - first)))
      some.moves[some.count++] = {move.from.block, static_cast<int32_t>(move.from.slot), move.to.block,
                                  static_cast<int32_t>(move.to.slot)};
    const int64_t widest = std::max(shape_.kv_heads * shape_.head_dim, shape_.row_size);
    move_kv_slots(stream_, shape_.type, widest, layers_.data(), shape_.layers, some);
  }
  const int64_t bytes = hidden_state_bytes(shape_);
  const auto state = [&](const KvSlot& at) {
    return hidden_states_.data() + (at.block * kBlockTokens + at.slot) * bytes;
  };
  for (const KvMove& move : moves)
    if (bytes > 0) copy(state(move.to), state(move.from), bytes, stream_);
}

template <class Each>
void DeviceKvStorage::for_each_part(int32_t block, const Each& each) const {
  const auto part = [&](const DeviceBuffer<std::byte>& memory, int64_t bytes) {
    if (bytes > 0) each(const_cast<std::byte*>(memory.data()) + block * bytes, bytes);
  };
  for (size_t l = 0; l < keys_.size(); ++l) {
    const KvLayer layer = layer_of(shape_, latent_dim_, static_cast<int64_t>(l));
    part(keys_[l], bytes_of_block(layer));
    if (layer.has_values()) part(values_[l], bytes_of_block(layer));
  }
  part(hidden_states_, kBlockTokens * hidden_state_bytes(shape_));
}

int64_t DeviceKvStorage::block_bytes() const { return bytes_for(shape_, latent_dim_, 1); }

void DeviceKvStorage::read_block(int32_t block, std::span<std::byte> to) const {
  use_device(device_);
  for_each_part(block, [&](const std::byte* at, int64_t bytes) {
    copy(to.data(), at, bytes, stream_);
    to = to.subspan(static_cast<size_t>(bytes));
  });
  stream_.synchronize();
}

void DeviceKvStorage::write_block(int32_t block, std::span<const std::byte> from) {
  use_device(device_);
  for_each_part(block, [&](std::byte* at, int64_t bytes) {
    copy(at, from.data(), bytes, stream_);
    from = from.subspan(static_cast<size_t>(bytes));
  });
  stream_.synchronize();
}

uint64_t DeviceKvStorage::content_hash(std::span<const int32_t> blocks, int64_t length) const {
  const int64_t element = outrider::element_bytes(shape_.type);
  use_device(device_);
  std::vector<std::byte> keys, values;
  uint64_t hash = 0;
  const auto add = [&](const std::vector<std::byte>& memory, int64_t offset) {
    uint32_t bits = 0;
    std::memcpy(&bits, memory.data() + offset * element, static_cast<size_t>(element));
    hash = hash_combine(hash, bits);
  };
  for (size_t l = 0; l < keys_.size(); ++l) {
    const KvLayer layer = layer_of(shape_, latent_dim_, static_cast<int64_t>(l));
    const int64_t bytes = bytes_of_block(layer);
    keys.resize(static_cast<size_t>(bytes));
    values.resize(static_cast<size_t>(bytes));
    for (int64_t p = 0; p < length; p += kBlockTokens) {
      const int64_t from = blocks[static_cast<size_t>(p / kBlockTokens)] * bytes;
      copy(keys.data(), keys_[l].data() + from, bytes, stream_);
      if (layer.has_values()) copy(values.data(), values_[l].data() + from, bytes, stream_);
      stream_.synchronize();
      const auto tokens = static_cast<int32_t>(std::min(kBlockTokens, length - p));
      for (int32_t h = 0; h < layer.kv_heads; ++h)
        for (int32_t t = 0; t < tokens; ++t)
          for (int32_t i = 0; i < layer.head_dim; ++i) {
            add(keys, layer.key_offset(0, h, t, i));
            if (layer.has_values()) add(values, layer.value_offset(0, h, t, i));
          }
    }
  }
  std::vector<std::byte> state(static_cast<size_t>(hidden_state_bytes(shape_)));
  for (int64_t p = 0; p < length && !state.empty(); ++p) {
    const int64_t at = blocks[static_cast<size_t>(p / kBlockTokens)] * kBlockTokens + p % kBlockTokens;
    copy(state.data(), hidden_states_.data() + at * hidden_state_bytes(shape_), hidden_state_bytes(shape_),
         stream_);
    stream_.synchronize();
    for (int64_t i = 0; i < shape_.hidden_state_size; ++i) add(state, i);
  }
  return hash;
}

}  // namespace outrider::cuda
