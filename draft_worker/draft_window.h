// A drafter's view of one sequence: the committed ids, and the ids whose KV its cache holds, which run ahead
// by the drafted tokens. A rollback finds the longest common beginning of the two. Pure; ids only.
//
// A drafter may skip the middle of a long text (skip_to_last). The model then reads a shorter text, read(),
// and the cache holds tokens of that text. Lengths and positions of the cache are those of the shorter text.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/hash.h"
#include "base/status.h"
#include "base/types.h"

namespace outrider {

class DraftWindow {
 public:
  explicit DraftWindow(std::vector<TokenId> prompt)
      : committed_(std::move(prompt)), hash_(prefix_hash(committed_)) {}

  void reserve(size_t tokens) {
    committed_.reserve(tokens);
    cached_.reserve(tokens);
  }

  // Skips all tokens between the first `sinks` and the last `last` of the committed text. The cache must hold
  // no more than the first `sinks`.
  void skip_to_last(int64_t sinks, int64_t last);
  int64_t skipped() const { return skipped_; }
  // The number of tokens of read() before this position of the committed text, which was not skipped.
  int64_t in_read(Position position) const { return position.value() - skipped_; }

  // Sets the committed text to end at `base` with these ids. kMalformed: they do not join the known text, and
  // the caller asks for a Resync. Repeating a call is a no-op; known tokens are never removed.
  Status advance(Position base, std::span<const TokenId> ids);

  // Whether an Open with these ids contains only known tokens.
  bool knows(std::span<const TokenId> ids) const {
    return ids.size() <= committed_.size() && std::equal(ids.begin(), ids.end(), committed_.begin());
  }

  // The number of leading cached tokens that stay valid: the common beginning of the cache and read(), but
  // never all of the text, since the last committed token must be fed to get the distribution of the next
  // one.
  int64_t keep() const;

  // Bookkeeping of the cache: `fed` ids were appended, or the first `length` tokens were kept.
  void fed(std::span<const TokenId> ids) { cached_.insert(cached_.end(), ids.begin(), ids.end()); }
  void kept(int64_t length) { cached_.resize(static_cast<size_t>(length)); }

  std::span<const TokenId> committed() const { return committed_; }
  // The committed text without the skipped tokens.
  std::span<const TokenId> read() const { return skipped_ > 0 ? read_ : committed_; }
  // Committed tokens without KV; two tokens after a full acceptance.
  std::span<const TokenId> pending() const { return read().subspan(cached_.size()); }
  int64_t cached() const { return static_cast<int64_t>(cached_.size()); }
  uint64_t hash() const { return hash_; }  // of committed()

 private:
  std::vector<TokenId> committed_;
  std::vector<TokenId> read_;  // only where tokens are skipped
  std::vector<TokenId> cached_;
  int64_t skipped_ = 0;
  uint64_t hash_;
};

}  // namespace outrider
