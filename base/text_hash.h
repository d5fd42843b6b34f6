// A hash of texts, for fingerprints that are stored and sent. Not cryptographic.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/hash.h"

namespace outrider {

// FNV-1a of the bytes, continued from `hash`, then of their number.
constexpr uint64_t hash_bytes(uint64_t hash, std::string_view bytes) {
  for (const char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return mix64(hash ^ bytes.size());
}

constexpr uint64_t fingerprint_of_text(std::string_view text) { return hash_bytes(0xcbf29ce484222325, text); }

}  // namespace outrider
