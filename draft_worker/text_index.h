// Texts that can be searched for where a suffix stood before: a window of the newest tokens with chains of
// the positions that have the same last 4, 2 and 1 tokens (as LZ77 compressors find matches). Memory is 28
// bytes a token of the window, all of it allocated when it is made; a token costs constant time. Pure.
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
  // `window`: tokens that are kept; rounded up to a power of two.
  explicit TextIndex(size_t window);

  // The newest text goes on with this token, or ends; the oldest token falls out of a full window.
  void append(TokenId id);
  void end_text();

  // A place where the suffix stood: the token at `next` followed, and `length` tokens in front of it agree.
  struct Match {
    uint64_t next = 0;
    int32_t length = 0;
  };
  // The newest places first among those of similar length: at most kMostMatches, and shorter matches only
  // where longer ones are few. `suffix`: the last tokens of some text; at most kLongestMatch are looked at.
  void find(std::span<const TokenId> suffix, std::vector<Match>& matches) const;
  // Empty: the text ends there.
  std::optional<TokenId> at(uint64_t position) const;

  size_t window() const { return ids_.size(); }
  uint64_t size() const { return end_; }  // tokens and ends of texts so far

  static constexpr int32_t kLongestMatch = 32;
  static constexpr size_t kMostMatches = 24;

 private:
  static constexpr std::array<int32_t, 3> kGrams = {4, 2, 1};
  static constexpr size_t kEnough = 8;  // matches, for which shorter ones are not looked up
  static constexpr int kSteps = 64;     // along one chain
  struct Chains {
    std::vector<uint32_t> newest;    // by hash: where the gram's next token stands, modulo 2^32
    std::vector<uint32_t> previous;  // by position in the window: the one before with the same hash
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
