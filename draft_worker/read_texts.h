// Texts that a draft model has read of sequences that were closed, with their keys and values: a sequence
// that begins alike takes them over. They take KV blocks that nobody else needs, and the oldest goes first.
// One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/types.h"
#include "transformer/kv/kv_cache.h"

namespace outrider {

class ReadTexts {
 public:
  // `kv` must outlive it. At most so many texts; 0: none.
  ReadTexts(KvCache& kv, size_t most) : kv_(kv), most_(most) {}
  ~ReadTexts();
  ReadTexts(const ReadTexts&) = delete;
  ReadTexts& operator=(const ReadTexts&) = delete;

  // A closed sequence's cache, which holds these ids and no others. It is this one's from now on.
  void keep(std::span<const TokenId> ids, uint64_t salt, KvHandle sequence);

  struct Found {
    KvHandle sequence;   // of a text that is kept
    int64_t length = 0;  // tokens that begin alike
  };
  // The text that has most of the beginning of these ids; texts of other salts have nothing.
  Found find(std::span<const TokenId> ids, uint64_t salt);

  // False: there is none.
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
  std::deque<Text> texts_;  // the one that was used longest ago in front
};

// How many tokens two texts begin with that are the same.
int64_t common_length(std::span<const TokenId> a, std::span<const TokenId> b);

}  // namespace outrider
