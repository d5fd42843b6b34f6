// Texts of closed sequences that a draft model has prefilled, with their keys and values, for sequences that
// begin alike. They take KV blocks without other use, and the oldest text is evicted first. One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/types.h"
#include "model/kv/kv_cache.h"

namespace outrider {

class ReadTexts {
 public:
  // `kv` must outlive it. Keeps at most `most` texts; 0: none.
  ReadTexts(KvCache& kv, size_t most) : kv_(kv), most_(most) {}
  ~ReadTexts();
  ReadTexts(const ReadTexts&) = delete;
  ReadTexts& operator=(const ReadTexts&) = delete;

  // Takes over a closed sequence's cache, which holds exactly these ids.
  void keep(std::span<const TokenId> ids, uint64_t salt, KvHandle sequence);

  struct Found {
    KvHandle sequence;   // of a text that is kept
    int64_t length = 0;  // common leading tokens
  };
  // The kept text with the longest common beginning with these ids; only texts with equal salt count.
  Found find(std::span<const TokenId> ids, uint64_t salt);

  // Evicts the oldest text. False: there is none.
  bool forget_one();

 private:
  struct Text {
    std::vector<TokenId> ids;
    uint64_t salt;
    KvHandle sequence;
  };
  void forget(std::deque<Text>::iterator text);

  KvCache& kv_;
  const size_t most_;
  std::deque<Text> texts_;  // least recently used first
};

// The length of the common beginning of two texts.
int64_t common_length(std::span<const TokenId> a, std::span<const TokenId> b);

}  // namespace outrider
