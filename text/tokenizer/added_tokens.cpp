#include "text/tokenizer/added_tokens.h"

#include <algorithm>

#include "base/log.h"
#include "base/utf8.h"

namespace outrider {
namespace {

uint64_t edge(int32_t node, char byte) {
  return static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(byte);
}

bool space_before(std::string_view text, size_t at) {
  size_t last = previous_boundary(text, at);
  return is_whitespace(next_codepoint(text, last));
}

}  // namespace

void AddedTokenFinder::add(const AddedToken& token) {
  CHECK(token.sought.size() <= kMaxTokenBytes, "added token of {} bytes", token.sought.size());
  if (token.sought.empty()) return;
  int32_t node = 0;
  for (const char byte : token.sought) {
    const auto [entry, is_new] = edges_.try_emplace(edge(node, byte), static_cast<int32_t>(token_at_.size()));
    if (is_new) token_at_.push_back(-1);
    node = entry->second;
  }
  token_at_[node] = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
}

std::optional<AddedTokenFinder::Match> AddedTokenFinder::longest_at(std::string_view text, size_t at) const {
  std::optional<Match> longest;
  int32_t node = 0;
  for (; at < text.size(); ++at) {
    const auto next = edges_.find(edge(node, text[at]));
    if (next == edges_.end()) break;
    node = next->second;
    if (token_at_[node] >= 0) longest = Match{at + 1, token_at_[node]};
  }
  return longest;
}

bool AddedTokenFinder::is_whole_word(std::string_view text, size_t begin, size_t end) const {
  if (begin > 0) {
    size_t before = previous_boundary(text, begin);
    if (is_word_character(next_codepoint(text, before))) return false;
  }
  return end == text.size() || !is_word_character(next_codepoint(text, end));
}

std::vector<Segment> AddedTokenFinder::split(std::string_view text) const {
  std::vector<Segment> segments;
  size_t done = 0;  // end of the last segment
  for (size_t at = 0; at < text.size() && !tokens_.empty();) {
    const std::optional<Match> match = longest_at(text, at);
    if (!match) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[match->token];
    size_t begin = at, end = match->end;
    at = match->end;
    if (begin < done) continue;  // its first bytes were whitespace that the last token took along
    if (token.single_word && !is_whole_word(text, begin, end)) continue;
    while (token.strip_left && begin > done && space_before(text, begin))
      begin = previous_boundary(text, begin);
    while (token.strip_right && end < text.size()) {
      size_t next = end;
      if (!is_whitespace(next_codepoint(text, next))) break;
      end = next;
    }
    if (begin > done) segments.push_back({done, begin, std::nullopt});
    segments.push_back({begin, end, token.id});
    done = end;
  }
  if (done < text.size()) segments.push_back({done, text.size(), std::nullopt});
  return segments;
}

}  // namespace outrider
