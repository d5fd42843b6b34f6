#include "text/grammar/token_table.h"

#include <algorithm>

namespace outrider {

TokenTable::TokenTable(const Tokenizer& tokenizer, std::vector<TokenId> ends, int32_t vocab_size)
    : tokenizer_(tokenizer), bytes_(static_cast<size_t>(vocab_size)), ends_(std::move(ends)) {
  std::erase_if(ends_, [&](TokenId id) { return id.value() < 0 || id.value() >= vocab_size; });
  for (int32_t i = 0; i < std::min(vocab_size, tokenizer.vocab_size()); ++i) {
    const TokenId id(i);
    if (is_end(id) || tokenizer.is_special(id)) continue;
    bytes_[static_cast<size_t>(i)] = tokenizer.token_bytes(id);
  }
  for (int32_t i = 0; i < vocab_size; ++i) {
    const std::string& bytes = bytes_[static_cast<size_t>(i)];
    if (bytes.empty()) continue;
    with_[bytes].emplace_back(i);
    longest_ = std::max(longest_, bytes.size());
  }
}

std::span<const TokenId> TokenTable::with_bytes(std::string_view bytes) const {
  const auto at = with_.find(bytes);
  return at == with_.end() ? std::span<const TokenId>() : at->second;
}

bool TokenTable::is_end(TokenId id) const { return std::find(ends_.begin(), ends_.end(), id) != ends_.end(); }

}  // namespace outrider
