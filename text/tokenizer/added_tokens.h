// Tokens that are found in the text before anything else happens to it: "<|im_end|>", "<s>".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/types.h"

namespace outrider {

struct AddedToken {
  TokenId id;
  std::string sought = {};  // the bytes to find, as they are where it is sought
  bool special = false;
  bool normalized = false;   // sought in normalised text, else in the text as given
  bool single_word = false;  // not inside a word
  bool strip_left = false;   // takes the whitespace before it along
  bool strip_right = false;
};

// A stretch of text: one added token, or text between added tokens.
struct Segment {
  size_t begin, end;  // bytes
  std::optional<TokenId> token;
};

// Finds tokens left to right, the longest first, in O(text * longest token).
class AddedTokenFinder {
 public:
  static constexpr size_t kMaxTokenBytes = 1024;
  void add(const AddedToken& token);  // at most kMaxTokenBytes; nothing if empty
  std::vector<Segment> split(std::string_view text) const;

 private:
  struct Match {
    size_t end;
    int32_t token;
  };
  std::optional<Match> longest_at(std::string_view text, size_t at) const;
  bool is_whole_word(std::string_view text, size_t begin, size_t end) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<uint64_t, int32_t> edges_;  // node << 8 | byte -> node of a trie whose root is 0
  std::vector<int32_t> token_at_{-1};            // by node
};

}  // namespace outrider
