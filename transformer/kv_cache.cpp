#include "transformer/kv_cache.h"

#include <algorithm>
#include <cstring>

#include "base/hash.h"
#include "base/log.h"

namespace outrider {
namespace {

int64_t blocks_for(int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

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

}  // namespace

void store_kv(const KvLayerView& layer, int64_t block, int64_t slot, int64_t kv_head,
              std::span<const float> key, std::span<const float> value) {
  layer.type == KvType::kBFloat16 ? store_as<bf16>(layer, block, slot, kv_head, key, value)
                                  : store_as<float>(layer, block, slot, kv_head, key, value);
}

int64_t KvShape::block_bytes() const {
  const int64_t element = type == KvType::kBFloat16 ? 2 : 4;
  return layers * kv_heads * kBlockTokens * (head_dim + round_up(head_dim, 16)) * element;
}

KvCache::KvCache(const KvShape& shape, int64_t num_blocks)
    : shape_(shape), references_(static_cast<size_t>(num_blocks), 0) {
  for (int64_t i = 0; i < shape.layers; ++i) {
    keys_.emplace_back(num_blocks * key_elements() * element_bytes());
    values_.emplace_back(num_blocks * value_elements() * element_bytes());
  }
  free_.reserve(static_cast<size_t>(num_blocks));
  for (int64_t b = num_blocks; b-- > 0;) free_.push_back(static_cast<int32_t>(b));
}

KvCache::Sequence& KvCache::sequence(KvHandle handle) {
  CHECK(handle.index >= 0 && handle.index < static_cast<int32_t>(sequences_.size()) &&
            sequences_[static_cast<size_t>(handle.index)].open,
        "KV handle {} is not open", handle.index);
  return sequences_[static_cast<size_t>(handle.index)];
}
const KvCache::Sequence& KvCache::sequence(KvHandle handle) const {
  return const_cast<KvCache*>(this)->sequence(handle);
}

KvHandle KvCache::create() {
  for (size_t i = 0; i < sequences_.size(); ++i)
    if (!sequences_[i].open) {
      sequences_[i].open = true;
      return {static_cast<int32_t>(i)};
    }
  sequences_.push_back({.blocks = {}, .length = 0, .open = true});
  return {static_cast<int32_t>(sequences_.size() - 1)};
}

KvHandle KvCache::fork(KvHandle parent) {
  const KvHandle child = create();
  Sequence& to = sequence(child);
  const Sequence& from = sequence(parent);
  to.blocks = from.blocks;
  to.length = from.length;
  for (int32_t block : to.blocks) ++references_[static_cast<size_t>(block)];
  return child;
}

void KvCache::release(KvHandle handle) {
  truncate(handle, 0);
  sequence(handle).open = false;
}

int32_t KvCache::take_block() {
  const int32_t block = free_.back();
  free_.pop_back();
  references_[static_cast<size_t>(block)] = 1;
  return block;
}

void KvCache::drop_block(int32_t block) {
  int32_t& count = references_[static_cast<size_t>(block)];
  CHECK(count > 0, "block {} is free", block);
  if (--count == 0) free_.push_back(block);
}

Status KvCache::append(KvHandle handle, int64_t count) {
  Sequence& s = sequence(handle);
  const int64_t have = static_cast<int64_t>(s.blocks.size());
  const bool shared_tail =
      s.length % kBlockTokens != 0 && count > 0 &&
      references_[static_cast<size_t>(s.blocks[static_cast<size_t>(s.length / kBlockTokens)])] > 1;
  const int64_t needed = std::max<int64_t>(0, blocks_for(s.length + count) - have) + (shared_tail ? 1 : 0);
  if (needed > free_blocks())
    return resource_exhausted(fmt::format("KV cache: {} blocks of {} tokens needed, {} of {} free", needed,
                                          kBlockTokens, free_blocks(), num_blocks()));
  if (shared_tail) {
    int32_t& tail = s.blocks[static_cast<size_t>(s.length / kBlockTokens)];
    const int32_t own = take_block();
    copy_block(tail, own);
    drop_block(tail);
    tail = own;
  }
  while (static_cast<int64_t>(s.blocks.size()) < blocks_for(s.length + count))
    s.blocks.push_back(take_block());
  s.length += count;
  return {};
}

void KvCache::truncate(KvHandle handle, int64_t length) {
  Sequence& s = sequence(handle);
  CHECK(length >= 0 && length <= s.length, "truncate to {} of {}", length, s.length);
  while (static_cast<int64_t>(s.blocks.size()) > blocks_for(length)) {
    drop_block(s.blocks.back());
    s.blocks.pop_back();
  }
  s.length = length;
}

void KvCache::compact(KvHandle handle, int64_t length, std::span<const int64_t> slots) {
  Sequence& s = sequence(handle);
  int64_t to = length;
  for (int64_t from : slots) {
    CHECK(from >= to && from < s.length, "slot {} of [{}, {})", from, to, s.length);
    if (from != to)
      copy_token(s.blocks[static_cast<size_t>(from / kBlockTokens)], from % kBlockTokens,
                 s.blocks[static_cast<size_t>(to / kBlockTokens)], to % kBlockTokens);
    ++to;
  }
  truncate(handle, to);
}

void KvCache::copy_block(int32_t from, int32_t to) {
  const auto key_bytes = static_cast<size_t>(key_elements() * element_bytes());
  const auto value_bytes = static_cast<size_t>(value_elements() * element_bytes());
  for (size_t i = 0; i < keys_.size(); ++i) {
    std::memcpy(keys_[i].data() + key_bytes * static_cast<size_t>(to),
                keys_[i].data() + key_bytes * static_cast<size_t>(from), key_bytes);
    std::memcpy(values_[i].data() + value_bytes * static_cast<size_t>(to),
                values_[i].data() + value_bytes * static_cast<size_t>(from), value_bytes);
  }
}

void KvCache::copy_token(int32_t from_block, int64_t from_slot, int32_t to_block, int64_t to_slot) {
  const auto element = static_cast<size_t>(element_bytes());
  for (size_t l = 0; l < keys_.size(); ++l) {
    const KvLayerView view = layer(static_cast<int64_t>(l));
    for (int64_t h = 0; h < view.kv_heads; ++h) {
      const int64_t from_head = from_block * view.kv_heads + h, to_head = to_block * view.kv_heads + h;
      for (int64_t i = 0; i < view.head_dim; ++i)
        std::memcpy(
            view.keys + ((to_head * view.head_dim + i) * kBlockTokens + to_slot) * element_bytes(),
            view.keys + ((from_head * view.head_dim + i) * kBlockTokens + from_slot) * element_bytes(),
            element);
      std::memcpy(
          view.values + (to_head * kBlockTokens + to_slot) * view.value_stride() * element_bytes(),
          view.values + (from_head * kBlockTokens + from_slot) * view.value_stride() * element_bytes(),
          element * static_cast<size_t>(view.head_dim));
    }
  }
}

KvLayerView KvCache::layer(int64_t index) {
  return {.type = shape_.type,
          .keys = keys_[static_cast<size_t>(index)].data(),
          .values = values_[static_cast<size_t>(index)].data(),
          .kv_heads = shape_.kv_heads,
          .head_dim = shape_.head_dim};
}

void KvCache::store(int64_t layer_index, KvHandle handle, int64_t position, int64_t kv_head,
                    std::span<const float> key, std::span<const float> value) {
  const Sequence& s = sequence(handle);
  DCHECK(position < s.length, "position {} of {}", position, s.length);
  store_kv(layer(layer_index), s.blocks[static_cast<size_t>(position / kBlockTokens)],
           position % kBlockTokens, kv_head, key, value);
}

Status KvCache::check_invariants() const {
  std::vector<int32_t> counted(references_.size(), 0);
  for (const Sequence& s : sequences_) {
    if (!s.open && !s.blocks.empty()) return malformed("a closed sequence owns blocks");
    if (s.open && static_cast<int64_t>(s.blocks.size()) != blocks_for(s.length))
      return malformed(fmt::format("{} blocks for {} tokens", s.blocks.size(), s.length));
    for (int32_t block : s.blocks) ++counted[static_cast<size_t>(block)];
  }
  if (counted != references_) return malformed("reference counts differ from the block tables");
  std::vector<int32_t> seen(references_.size(), 0);
  for (int32_t block : free_) {
    if (references_[static_cast<size_t>(block)] != 0)
      return malformed(fmt::format("block {} is free and in use", block));
    if (++seen[static_cast<size_t>(block)] > 1)
      return malformed(fmt::format("block {} is free twice", block));
  }
  const auto used = std::count_if(references_.begin(), references_.end(), [](int32_t r) { return r > 0; });
  if (used + free_blocks() != num_blocks()) return malformed("a block is lost");
  return {};
}

uint64_t KvCache::content_hash(KvHandle handle) const {
  const Sequence& s = sequence(handle);
  uint64_t hash = 0;
  const int64_t element = element_bytes();
  const auto add = [&](const std::byte* at) {
    uint32_t bits = 0;
    std::memcpy(&bits, at, static_cast<size_t>(element));
    hash = hash_combine(hash, bits);
  };
  for (size_t l = 0; l < keys_.size(); ++l) {
    const KvLayerView view = const_cast<KvCache*>(this)->layer(static_cast<int64_t>(l));
    for (int64_t p = 0; p < s.length; ++p)
      for (int64_t h = 0; h < view.kv_heads; ++h) {
        const int64_t head = s.blocks[static_cast<size_t>(p / kBlockTokens)] * view.kv_heads + h,
                      slot = p % kBlockTokens;
        for (int64_t i = 0; i < view.head_dim; ++i) {
          add(view.keys + ((head * view.head_dim + i) * kBlockTokens + slot) * element);
          add(view.values + ((head * kBlockTokens + slot) * view.value_stride() + i) * element);
        }
      }
  }
  return hash;
}

}  // namespace outrider
