// An index of texts by suffix: a window of the newest tokens, with chains of the positions that have the same
// last 4, 2 and 1 tokens (as LZ77 compressors find matches). Takes 28 bytes a token of the window, allocated
// in the constructor; a token costs constant time. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/types.h"

namespace outrider {

class TextIndex {
 public:
  // `window`: number of kept tokens, rounded up to a power of two.
  explicit TextIndex(size_t window);

  // Appends a token to the newest text, or ends it; the oldest token leaves a full window.
  void append(TokenId id);
  void end_text();

  // An occurrence of the suffix: the token at `next` followed it, and `length` tokens before it agree.
  struct Match {
    uint64_t next = 0;
    int32_t length = 0;
  };
  // Finds at most kMaxMatches occurrences, the newest first among those of similar length; shorter matches
  // only where longer ones are few. `suffix`: the last tokens of a text; at most kLongestMatch are used.
  void find(std::span<const TokenId> suffix, std::vector<Match>& matches) const;
  // Empty: the text ends there.
  std::optional<TokenId> at(uint64_t position) const;

  size_t window() const { return ids_.size(); }
  uint64_t size() const { return end_; }  // tokens and ends of texts so far

  static constexpr int32_t kLongestMatch = 32;
  static constexpr size_t kMaxMatches = 24;

 private:
  static constexpr std::array<int32_t, 3> kGrams = {4, 2, 1};
  static constexpr size_t kEnough = 8;  // number of matches that makes shorter ones unnecessary
  static constexpr int kSteps = 64;     // limit along one chain
  struct Chains {
    std::vector<uint32_t> newest;    // by hash: position after the gram, modulo 2^32
    std::vector<uint32_t> previous;  // by position in the window: the previous position with the same hash
  };

  size_t place(uint64_t position) const { return position & (ids_.size() - 1); }
  size_t hash(std::span<const TokenId> gram) const;
  int32_t common(std::span<const TokenId> suffix, uint64_t next) const;

  std::vector<TokenId> ids_;  // by place; kEnd between texts
  std::array<Chains, kGrams.size()> chains_;
  std::array<TokenId, 4> last_{};  // of the newest text
  size_t run_ = 0;                 // tokens of the newest text
  uint64_t end_ = 0;
};

}  // namespace outrider
