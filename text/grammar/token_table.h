// The bytes that each token adds to a text, and the tokens that add given bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/types.h"
#include "text/tokenizer/tokenizer.h"

namespace outrider {

class TokenTable {
 public:
  // `vocab_size`: rows of the model's head, which may be more, or fewer, than the tokenizer has ids; ids that
  // it lacks, and special tokens, add no bytes. `ends`: end-of-sequence tokens.
  TokenTable(const Tokenizer& tokenizer, std::vector<TokenId> ends, int32_t vocab_size);
  TokenTable(const TokenTable&) = delete;  // views of its own strings

  int32_t vocab_size() const { return static_cast<int32_t>(bytes_.size()); }
  const std::string& bytes_of(TokenId id) const { return bytes_[static_cast<size_t>(id.value())]; }
  // Not empty bytes.
  std::span<const TokenId> with_bytes(std::string_view bytes) const;
  size_t longest() const { return longest_; }  // bytes of a token
  const std::vector<TokenId>& ends() const { return ends_; }
  bool is_end(TokenId id) const;
  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  const Tokenizer& tokenizer_;
  std::vector<std::string> bytes_;
  std::unordered_map<std::string_view, std::vector<TokenId>> with_;
  std::vector<TokenId> ends_;
  size_t longest_ = 0;
};

}  // namespace outrider
