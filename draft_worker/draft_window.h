// What a drafter knows of one sequence: the committed ids, and the ids whose KV its cache holds, which run
// ahead of them by what was drafted. Rolling back is finding out how far the two agree. Pure; ids only.
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

  // The committed text now ends at `base` with these ids. kMalformed when they do not join what is known: the
  // caller asks for a Resync. Repeating a call is a no-op; what was known is never taken back.
  Status advance(Position base, std::span<const TokenId> ids);

  // Whether an Open with these ids says nothing new.
  bool knows(std::span<const TokenId> ids) const {
    return ids.size() <= committed_.size() && std::equal(ids.begin(), ids.end(), committed_.begin());
  }

  // How many leading tokens of the cache still hold: the common prefix of cache and committed text, but never
  // all of it, since the last committed token must be fed to get the distribution of the next.
  int64_t keep() const;

  // Bookkeeping of the cache. `fed` ids were appended to it, `length` tokens were kept of it.
  void fed(std::span<const TokenId> ids) { cached_.insert(cached_.end(), ids.begin(), ids.end()); }
  void kept(int64_t length) { cached_.resize(static_cast<size_t>(length)); }

  std::span<const TokenId> committed() const { return committed_; }
  // Committed tokens whose KV is missing; after a full acceptance there are two of them.
  std::span<const TokenId> pending() const { return std::span(committed_).subspan(cached_.size()); }
  int64_t cached() const { return static_cast<int64_t>(cached_.size()); }
  uint64_t hash() const { return hash_; }  // of committed()

 private:
  std::vector<TokenId> committed_;
  std::vector<TokenId> cached_;
  uint64_t hash_;
};

}  // namespace outrider
