// How often each token occurred in one sequence: what penalties need. Holds committed tokens only; draft
// tokens are a short list that each row adds on top, so a rejection has nothing to undo here.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/types.h"

namespace outrider {

class TokenCounts {
 public:
  struct Entry {
    TokenId id;
    bool in_prompt = false;
    int32_t in_output = 0;
  };

  void add_prompt(std::span<const TokenId> ids) {
    for (TokenId id : ids) entry(id).in_prompt = true;
  }
  void add_output(TokenId id) { ++entry(id).in_output; }
  void add_output(std::span<const TokenId> ids) {
    for (TokenId id : ids) add_output(id);
  }

  // One per distinct token, in order of first occurrence.
  std::span<const Entry> entries() const { return entries_; }
  Entry find(TokenId id) const {
    const auto it = index_.find(id);
    return it == index_.end() ? Entry{id} : entries_[it->second];
  }

 private:
  Entry& entry(TokenId id) {
    const auto [it, is_new] = index_.try_emplace(id, entries_.size());
    if (is_new) entries_.push_back({id});
    return entries_[it->second];
  }

  std::vector<Entry> entries_;
  std::unordered_map<TokenId, size_t> index_;
};

}  // namespace outrider
