// Small hashes in messages: of a committed prefix, and of the state that all target ranks must share. Not
// cryptographic: they catch bugs and stale messages, not attackers.
#pragma once

#include <cstdint>
#include <span>

#include "base/types.h"

namespace outrider {

// Finaliser of splitmix64 (Steele, Lea, Flood 2014).
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

constexpr uint64_t hash_combine(uint64_t hash, uint64_t value) { return mix64(hash ^ mix64(value)); }

// Hash of ids[0..n); extend_prefix_hash(prefix_hash(a), b) == prefix_hash(a + b).
constexpr uint64_t kEmptyPrefixHash = 0x6f75747269646572;
constexpr uint64_t extend_prefix_hash(uint64_t hash, TokenId id) {
  return hash_combine(hash, static_cast<uint32_t>(id.value()));
}
constexpr uint64_t prefix_hash(std::span<const TokenId> ids) {
  uint64_t hash = kEmptyPrefixHash;
  for (TokenId id : ids) hash = extend_prefix_hash(hash, id);
  return hash;
}

// One term of a StepPlan's state hash. Terms are added, so the order of sequences does not matter.
constexpr uint64_t state_hash_term(SequenceId sequence, int64_t committed, int64_t kv_length, Epoch epoch) {
  uint64_t hash = hash_combine(0, sequence.value());
  hash = hash_combine(hash, static_cast<uint64_t>(committed));
  hash = hash_combine(hash, static_cast<uint64_t>(kv_length));
  return hash_combine(hash, epoch.value());
}

// The term of a stored prefix.
constexpr uint64_t prefix_hash_term(uint64_t prefix, int64_t length) {
  return hash_combine(hash_combine(1, prefix), static_cast<uint64_t>(length));
}

}  // namespace outrider
