// Foreign values in error messages: a request may hold megabytes, a message must not.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace outrider {

constexpr size_t kShownBytes = 60;

// The text, or its first `most` bytes and an ellipsis. Does not split a UTF-8 character.
inline std::string shortened(std::string_view text, size_t most = kShownBytes) {
  if (text.size() <= most) return std::string(text);
  size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80 && most - end < 4) --end;
  return std::string(text.substr(0, end)) + "...";
}

}  // namespace outrider
