// Pure arithmetic: which part of every tensor a tp_rank owns. Nothing here allocates or communicates.
//
// Every contraction that tensor parallelism cuts is cut into 8 leaves, whatever the degree, and the leaves
// are summed in one balanced tree; rank r of T owns leaves [8r/T, 8(r+1)/T). So T in {1, 2, 4, 8} gives the
// same bits.
#pragma once

#include <array>
#include <cstdint>

#include "base/log.h"

namespace outrider {

constexpr int kLeaves = 8;

struct Shard {
  int tp_rank = 0;
  int tp_size = 1;  // 1, 2, 4 or 8
};

// Half-open range of indices.
struct IndexRange {
  int64_t begin = 0;
  int64_t end = 0;
  constexpr int64_t size() const { return end - begin; }
  constexpr bool contains(int64_t i) const { return begin <= i && i < end; }
  constexpr bool operator==(const IndexRange&) const = default;
};

constexpr bool is_supported_tp_size(int tp_size) {
  return tp_size == 1 || tp_size == 2 || tp_size == 4 || tp_size == 8;
}

// Leaf i of a contraction of `units` units (query heads, or groups of columns): may be empty.
constexpr IndexRange leaf_units(int64_t units, int leaf) {
  return {leaf * units / kLeaves, (leaf + 1) * units / kLeaves};
}

constexpr IndexRange shard_leaves(Shard shard) {
  return {int64_t{kLeaves} * shard.tp_rank / shard.tp_size,
          int64_t{kLeaves} * (shard.tp_rank + 1) / shard.tp_size};
}

// The units whose leaves this rank owns: contiguous.
constexpr IndexRange shard_units(int64_t units, Shard shard) {
  const IndexRange leaves = shard_leaves(shard);
  return {leaves.begin * units / kLeaves, leaves.end * units / kLeaves};
}

// The vocabulary rows of this rank.
constexpr IndexRange vocab_range(int64_t vocab_size, Shard shard) {
  return {shard.tp_rank * vocab_size / shard.tp_size, (shard.tp_rank + 1) * vocab_size / shard.tp_size};
}

// The KV heads that a range of query heads reads; replicated on several ranks where needed.
constexpr IndexRange kv_heads_of(IndexRange query_heads, int64_t num_heads, int64_t num_kv_heads) {
  if (query_heads.size() == 0) return {0, 0};
  const int64_t group = num_heads / num_kv_heads;
  return {query_heads.begin / group, (query_heads.end - 1) / group + 1};
}

}  // namespace outrider
