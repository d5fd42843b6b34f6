#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

namespace outrider {

std::string StreamDecoder::append(TokenId id) {
  const bool is_shown = special_ == SpecialText::kShow && tokenizer_->is_special(id);
  std::string bytes = is_shown ? std::string(tokenizer_->token(id)) : tokenizer_->token_bytes(id);
  if (at_start_ && !bytes.empty()) {
    at_start_ = false;
    if (tokenizer_->strips_leading_space() && bytes.front() == ' ') bytes.erase(0, 1);
  }
  pending_ += bytes;
  return take_whole_characters(pending_);
}

std::string decode_with_special_tokens(const Tokenizer& tokenizer, std::span<const TokenId> ids) {
  StreamDecoder decoder(tokenizer, SpecialText::kShow);
  std::string text;
  for (const TokenId id : ids) text += decoder.append(id);
  return text + decoder.flush();
}

std::string StreamDecoder::flush() { return repair_utf8(std::exchange(pending_, {})); }

}  // namespace outrider
