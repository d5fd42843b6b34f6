// One letter per id: 10 is "a", 35 is "z"; 0 is a special token; 5 and 6 are the two bytes of "é"; others are
// "?".
#pragma once

#include "text/tokenizer/tokenizer.h"

namespace outrider {

class ToyTokenizer : public Tokenizer {
 public:
  Result<std::vector<TokenId>> encode(std::string_view text, SpecialTokens) const override {
    std::vector<TokenId> ids;
    for (char c : text) ids.emplace_back(c - 'a' + 10);
    return ids;
  }
  std::string decode(std::span<const TokenId> ids) const override {
    std::string text;
    for (TokenId id : ids) text += token_bytes(id);
    return text;
  }
  int32_t vocab_size() const override { return 40; }
  std::string_view token(TokenId) const override { return "?"; }
  std::string token_bytes(TokenId id) const override {
    if (id.value() == 0) return "";
    if (id.value() == 5) return "\xC3";
    if (id.value() == 6) return "\xA9";
    return std::string(1,
                       id.value() >= 10 && id.value() < 36 ? static_cast<char>('a' + id.value() - 10) : '?');
  }
  bool is_special(TokenId id) const override { return id.value() == 0; }
  std::optional<TokenId> find(std::string_view) const override { return std::nullopt; }
  std::optional<TokenId> bos() const override { return std::nullopt; }
  uint64_t fingerprint() const override { return 7; }
  bool strips_leading_space() const override { return false; }
};

}  // namespace outrider
