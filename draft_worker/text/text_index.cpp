#include "draft_worker/text/text_index.h"

#include <algorithm>
#include <bit>

namespace outrider {
namespace {
constexpr TokenId kEnd{-1};
}

TextIndex::TextIndex(size_t window) : ids_(std::bit_ceil(std::max<size_t>(window, 16)), kEnd) {
  for (Chains& chains : chains_) {
    chains.newest.assign(ids_.size(), 0);
    chains.previous.assign(ids_.size(), 0);
  }
}

size_t TextIndex::hash(std::span<const TokenId> gram) const {
  uint64_t h = 0x9e3779b97f4a7c15;
  for (TokenId id : gram) h = (h ^ static_cast<uint32_t>(id.value())) * 0xff51afd7ed558ccd;
  return (h >> 32 ^ h) & (ids_.size() - 1);
}

void TextIndex::append(TokenId id) {
  ids_[place(end_++)] = id;
  std::rotate(last_.begin(), last_.begin() + 1, last_.end());
  last_.back() = id;
  ++run_;
  for (size_t g = 0; g < kGrams.size(); ++g) {
    const auto n = static_cast<size_t>(kGrams[g]);
    if (run_ < n) continue;
    uint32_t& newest = chains_[g].newest[hash(std::span(last_).last(n))];
    chains_[g].previous[place(end_)] = newest;
    newest = static_cast<uint32_t>(end_);
  }
}

void TextIndex::end_text() {
  if (run_ == 0) return;
  ids_[place(end_++)] = kEnd;
  run_ = 0;
}

std::optional<TokenId> TextIndex::at(uint64_t position) const {
  if (position >= end_ || end_ - position > ids_.size()) return std::nullopt;
  const TokenId id = ids_[place(position)];
  return id == kEnd ? std::nullopt : std::optional(id);
}

// The number of tokens before `next` that equal the end of the suffix.
int32_t TextIndex::common(std::span<const TokenId> suffix, uint64_t next) const {
  const auto most = std::min<size_t>(suffix.size(), kLongestMatch);
  int32_t length = 0;
  for (size_t back = 1; back <= most && back <= next; ++back, ++length)
    if (at(next - back) != suffix[suffix.size() - back]) break;
  return length;
}

void TextIndex::find(std::span<const TokenId> suffix, std::vector<Match>& matches) const {
  matches.clear();
  int32_t known_from = kLongestMatch + 1;  // matches of at least this length were found by a longer gram
  for (size_t g = 0; g < kGrams.size() && matches.size() < kEnough; ++g) {
    const auto n = static_cast<size_t>(kGrams[g]);
    if (suffix.size() < n) continue;
    uint64_t distance = 0;
    uint32_t next = chains_[g].newest[hash(suffix.last(n))];
    for (int step = 0; step < kSteps && matches.size() < kMaxMatches; ++step) {
      const uint64_t further = static_cast<uint32_t>(static_cast<uint32_t>(end_) - next);
      // Outside the window, or an overwritten chain. The suffix itself may be the newest entry.
      if (further >= ids_.size() || further > end_ || (step > 0 && further <= distance)) break;
      distance = further;
      const uint64_t position = end_ - distance;
      const int32_t length = at(position) ? common(suffix, position) : 0;
      if (length >= static_cast<int32_t>(n) && length < known_from) matches.push_back({position, length});
      next = chains_[g].previous[place(position)];
    }
    known_from = static_cast<int32_t>(n);
  }
}

}  // namespace outrider
