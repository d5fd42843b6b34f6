#include "transformer/tokenizer/tokenizer.h"
#include "transformer/tokenizer/utf8.h"

namespace outrider {

std::string StreamDecoder::append(TokenId id) {
  std::string bytes = tokenizer_->token_bytes(id);
  if (at_start_ && !bytes.empty()) {
    at_start_ = false;
    if (tokenizer_->strips_leading_space() && bytes.front() == ' ') bytes.erase(0, 1);
  }
  pending_ += bytes;
  return take_whole_characters(pending_);
}

std::string StreamDecoder::flush() { return repair_utf8(std::exchange(pending_, {})); }

}  // namespace outrider
