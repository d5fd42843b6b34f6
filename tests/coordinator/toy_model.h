// A "language model" whose next token is a function of the prefix hash: plain decoding is the oracle for any
// run.
#pragma once

#include <span>
#include <vector>

#include "base/hash.h"

namespace outrider {

constexpr int32_t kToyVocab = 40;
constexpr TokenId kToyEos{0};

// End of sequence comes about every `kToyVocab` tokens.
inline TokenId toy_next(uint64_t hash) { return TokenId(static_cast<int32_t>(mix64(hash) % kToyVocab)); }
inline TokenId toy_next(std::span<const TokenId> ids) { return toy_next(prefix_hash(ids)); }

// The tokens that plain decoding emits.
inline std::vector<TokenId> toy_plain(std::vector<TokenId> ids, int32_t max_tokens, int32_t max_context,
                                      bool ignore_eos) {
  std::vector<TokenId> emitted;
  while (static_cast<int32_t>(emitted.size()) < max_tokens &&
         static_cast<int32_t>(ids.size()) < max_context) {
    ids.push_back(toy_next(ids));
    emitted.push_back(ids.back());
    if (!ignore_eos && ids.back() == kToyEos) break;
  }
  return emitted;
}

// A row of the toy target's hidden states: what the text up to its token is, as a finite number of bf16.
constexpr uint64_t kToyHiddenStateHead = 5;
inline uint16_t toy_state(uint64_t prefix_hash) { return static_cast<uint16_t>(prefix_hash & 0x3fff); }

}  // namespace outrider
