// Ids in, text to show out: whole characters only, and never any part of a stop string. Pure; one per
// request.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace outrider {

// Cuts a text before the first stop string, holding back what could be the beginning of one.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);
  // Returns the text that may be shown now. After a match it ends before the stop string, and nothing more
  // comes. `may_stop`: a stop string that ends in this piece counts.
  std::string append(std::string_view piece, bool may_stop = true);
  std::string flush();  // returns the held-back text, when no more text will come
  bool stopped() const { return stopped_; }
  const std::string& matched() const { return matched_; }  // empty: none

 private:
  size_t held_length() const;

  std::vector<std::string> stops_;
  std::string pending_, matched_;
  bool stopped_ = false;
};

class TextStream {
 public:
  // The prompt is decoded first, so a leading space of the continuation is kept where it belongs.
  // `shown`: special tokens that are written out.
  TextStream(const Tokenizer& tokenizer, std::span<const TokenId> prompt, std::vector<std::string> stops,
             std::vector<TokenId> shown = {});
  // `may_stop`: as StopMatcher's, of what can be shown because of this token.
  std::string append(TokenId id, bool may_stop = true);
  std::string flush();
  bool stopped() const { return matcher_.stopped(); }
  const std::string& matched() const { return matcher_.matched(); }

 private:
  const Tokenizer& tokenizer_;
  StreamDecoder decoder_;
  StopMatcher matcher_;
  std::vector<TokenId> shown_;
  bool may_stop_ = true;  // the last value passed in
};

}  // namespace outrider
