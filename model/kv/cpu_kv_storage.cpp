#include "model/kv/cpu_kv_storage.h"

#include <algorithm>
#include <cstring>

#include "base/hash.h"
#include "base/log.h"

namespace outrider {
namespace {

template <class T>
T from_float(float value) {
  if constexpr (std::is_same_v<T, bf16>)
    return to_bf16(value);
  else
    return value;
}

template <class T>
void store_as(const KvLayerView& layer, int64_t block, int64_t slot, int64_t kv_head,
              std::span<const float> key, std::span<const float> value) {
  const int64_t head = block * layer.kv_heads + kv_head, d = layer.head_dim;
  T* keys = reinterpret_cast<T*>(layer.keys) + head * d * kBlockTokens;
  T* values = reinterpret_cast<T*>(layer.values) + (head * kBlockTokens + slot) * layer.value_stride();
  for (int64_t i = 0; i < d; ++i) {
    keys[i * kBlockTokens + slot] = from_float<T>(key[static_cast<size_t>(i)]);
    values[i] = from_float<T>(value[static_cast<size_t>(i)]);
  }
}

// Copies one token's keys and values in one layer; `from` and `to` may be the same.
template <class T>
void copy_slot_as(const KvLayerView& from, const KvSlot& at, const KvLayerView& to, const KvSlot& to_at) {
  const int64_t d = from.head_dim, stride = from.value_stride();
  const auto *from_keys = reinterpret_cast<const T*>(from.keys),
             *from_values = reinterpret_cast<const T*>(from.values);
  auto *keys = reinterpret_cast<T*>(to.keys), *values = reinterpret_cast<T*>(to.values);
  for (int64_t h = 0; h < from.kv_heads; ++h) {
    const int64_t source = at.block * from.kv_heads + h, target = to_at.block * from.kv_heads + h;
    for (int64_t i = 0; from.has_keys && i < d; ++i)
      keys[(target * d + i) * kBlockTokens + to_at.slot] =
          from_keys[(source * d + i) * kBlockTokens + at.slot];
    std::copy_n(from_values + (source * kBlockTokens + at.slot) * stride, d,
                values + (target * kBlockTokens + to_at.slot) * stride);
  }
}

void copy_slot(const KvLayerView& from, const KvSlot& at, const KvLayerView& to, const KvSlot& to_at) {
  from.type == KvType::kBFloat16 ? copy_slot_as<bf16>(from, at, to, to_at)
                                 : copy_slot_as<float>(from, at, to, to_at);
}

template <class T>
void store_row_as(const KvLayerView& layer, int64_t block, int64_t slot, std::span<const float> row) {
  T* const to = reinterpret_cast<T*>(layer.values) + (block * kBlockTokens + slot) * layer.value_stride();
  std::transform(row.begin(), row.end(), to, [](float x) { return from_float<T>(x); });
}

}  // namespace

void store_row(const KvLayerView& layer, int64_t block, int64_t slot, std::span<const float> row) {
  layer.type == KvType::kBFloat16 ? store_row_as<bf16>(layer, block, slot, row)
                                  : store_row_as<float>(layer, block, slot, row);
}

void store_kv(const KvLayerView& layer, int64_t block, int64_t slot, int64_t kv_head,
              std::span<const float> key, std::span<const float> value) {
  layer.type == KvType::kBFloat16 ? store_as<bf16>(layer, block, slot, kv_head, key, value)
                                  : store_as<float>(layer, block, slot, kv_head, key, value);
}

CpuKvStorage::CpuKvStorage(const KvShape& shape, int64_t num_blocks)
    : shape_(shape), hidden_states_(num_blocks * kBlockTokens * hidden_state_bytes()) {
  for (int64_t i = 0; i < shape.layers; ++i) {
    keys_.emplace_back(num_blocks * key_bytes(i));
    values_.emplace_back(num_blocks * value_bytes(i));
  }
}

KvLayerView CpuKvStorage::layer_shape(int64_t index) const {
  if (shape_.keeps_row(index))
    return {.type = shape_.type, .kv_heads = 1, .head_dim = shape_.row_size, .has_keys = false};
  const KvLayerSize size = shape_.size(index);
  return {.type = shape_.type, .kv_heads = size.kv_heads, .head_dim = size.head_dim};
}

int64_t CpuKvStorage::key_bytes(int64_t layer) const {
  if (!shape_.holds(layer)) return 0;
  const KvLayerView shape = layer_shape(layer);
  return shape.has_keys ? shape.kv_heads * shape.head_dim * kBlockTokens * element_bytes(shape.type) : 0;
}
int64_t CpuKvStorage::value_bytes(int64_t layer) const {
  if (!shape_.holds(layer)) return 0;
  const KvLayerView shape = layer_shape(layer);
  return shape.kv_heads * shape.value_stride() * kBlockTokens * element_bytes(shape.type);
}

int64_t CpuKvStorage::hidden_state_bytes() const {
  return shape_.hidden_state_size * element_bytes(shape_.type);
}

void CpuKvStorage::store_hidden_state(const KvSlot& at, int64_t first, std::span<const float> numbers) {
  if (shape_.type == KvType::kFloat32) {
    std::memcpy(state(at) + first * element_bytes(shape_.type), numbers.data(), numbers.size_bytes());
    return;
  }
  auto* const to = reinterpret_cast<bf16*>(state(at)) + first;
  std::transform(numbers.begin(), numbers.end(), to, [](float x) { return to_bf16(x); });
}

void CpuKvStorage::read_hidden_state(const KvSlot& at, std::span<float> to) const {
  if (shape_.type == KvType::kFloat32) {
    std::memcpy(to.data(), state(at), to.size_bytes());
    return;
  }
  const auto* const from = reinterpret_cast<const bf16*>(state(at));
  std::transform(from, from + to.size(), to.begin(), [](bf16 x) { return to_float(x); });
}

KvLayerView CpuKvStorage::layer(int64_t index) const {
  KvLayerView view = layer_shape(index);
  const auto holder = static_cast<size_t>(shape_.size(index).of);
  view.keys = keys_[holder].data();
  view.values = values_[holder].data();
  return view;
}

void CpuKvStorage::copy_block(int32_t from, int32_t to) {
  for (size_t i = 0; i < keys_.size(); ++i) {
    const auto layer = static_cast<int64_t>(i);
    if (!shape_.holds(layer)) continue;
    const auto keys = static_cast<size_t>(key_bytes(layer)), values = static_cast<size_t>(value_bytes(layer));
    std::memcpy(keys_[i].data() + keys * static_cast<size_t>(to),
                keys_[i].data() + keys * static_cast<size_t>(from), keys);
    std::memcpy(values_[i].data() + values * static_cast<size_t>(to),
                values_[i].data() + values * static_cast<size_t>(from), values);
  }
  if (shape_.hidden_state_size > 0)
    std::memcpy(state({to, 0}), state({from, 0}), static_cast<size_t>(kBlockTokens * hidden_state_bytes()));
}

template <class Each>
void CpuKvStorage::for_each_part(int32_t block, const Each& each) const {
  const auto at = static_cast<size_t>(block);
  for (size_t i = 0; i < keys_.size(); ++i) {
    const auto layer = static_cast<int64_t>(i);
    if (!shape_.holds(layer)) continue;
    const auto keys = static_cast<size_t>(key_bytes(layer)), values = static_cast<size_t>(value_bytes(layer));
    each(std::span(keys_[i].data() + keys * at, keys));
    each(std::span(values_[i].data() + values * at, values));
  }
  if (shape_.hidden_state_size > 0)
    each(std::span(state({block, 0}), static_cast<size_t>(kBlockTokens * hidden_state_bytes())));
}

int64_t CpuKvStorage::block_bytes() const {
  size_t bytes = 0;
  for_each_part(0, [&](std::span<std::byte> part) { bytes += part.size(); });
  return static_cast<int64_t>(bytes);
}

void CpuKvStorage::read_block(int32_t block, std::span<std::byte> to) const {
  for_each_part(block, [&](std::span<std::byte> part) {
    if (!part.empty()) std::memcpy(to.data(), part.data(), part.size());
    to = to.subspan(part.size());
  });
}

void CpuKvStorage::write_block(int32_t block, std::span<const std::byte> from) {
  for_each_part(block, [&](std::span<std::byte> part) {
    if (!part.empty()) std::memcpy(part.data(), from.data(), part.size());
    from = from.subspan(part.size());
  });
}

void CpuKvStorage::copy_token(const CpuKvStorage& from, const KvSlot& at, const KvSlot& to) {
  CHECK(from.shape_.kv_heads == shape_.kv_heads && from.shape_.head_dim == shape_.head_dim &&
            from.shape_.type == shape_.type && from.shape_.hidden_state_size == shape_.hidden_state_size &&
            from.shape_.row_layers == shape_.row_layers && from.shape_.row_size == shape_.row_size &&
            from.shape_.layer_sizes == shape_.layer_sizes,
        "a token of {} heads of {}, not {} of {}", from.shape_.kv_heads, from.shape_.head_dim,
        shape_.kv_heads, shape_.head_dim);
  for (int64_t l = 0; l < std::min(shape_.layers, from.shape_.layers); ++l)
    if (shape_.holds(l)) copy_slot(from.layer(l), at, layer(l), to);
  if (shape_.hidden_state_size > 0)
    std::memcpy(state(to), from.state(at), static_cast<size_t>(hidden_state_bytes()));
}

void CpuKvStorage::copy_slots(std::span<const KvMove> moves) {
  for (int64_t l = 0; l < shape_.layers; ++l) {
    if (!shape_.holds(l)) continue;
    const KvLayerView view = layer(l);
    for (const KvMove& move : moves) copy_slot(view, move.from, view, move.to);
  }
  for (const KvMove& move : moves)
    if (shape_.hidden_state_size > 0)
      std::memcpy(state(move.to), state(move.from), static_cast<size_t>(hidden_state_bytes()));
}

uint64_t CpuKvStorage::content_hash(std::span<const int32_t> blocks, int64_t length) const {
  uint64_t hash = 0;
  const int64_t element = element_bytes(shape_.type);
  const auto add = [&](const std::byte* at) {
    uint32_t bits = 0;
    std::memcpy(&bits, at, static_cast<size_t>(element));
    hash = hash_combine(hash, bits);
  };
  for (int64_t l = 0; l < shape_.layers; ++l) {
    if (!shape_.holds(l)) continue;
    const KvLayerView view = layer(l);
    for (int64_t p = 0; p < length; ++p)
      for (int64_t h = 0; h < view.kv_heads; ++h) {
        const int64_t head = blocks[static_cast<size_t>(p / kBlockTokens)] * view.kv_heads + h,
                      slot = p % kBlockTokens;
        for (int64_t i = 0; i < view.head_dim; ++i) {
          if (view.has_keys) add(view.keys + ((head * view.head_dim + i) * kBlockTokens + slot) * element);
          add(view.values + ((head * kBlockTokens + slot) * view.value_stride() + i) * element);
        }
      }
  }
  for (int64_t p = 0; p < length; ++p) {
    const std::byte* const numbers = state({blocks[static_cast<size_t>(p / kBlockTokens)], p % kBlockTokens});
    for (int64_t i = 0; i < shape_.hidden_state_size; ++i) add(numbers + i * element);
  }
  return hash;
}

}  // namespace outrider
