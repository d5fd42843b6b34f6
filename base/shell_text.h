// Text for shells.
#pragma once

#include <string>
#include <string_view>

namespace outrider {

inline std::string in_single_quotes(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// One argument of a command, quoted if necessary.
inline std::string shell_word(const std::string& argument) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./:,+@%";
  const bool is_plain = !argument.empty() && argument.find_first_not_of(kPlain) == std::string::npos;
  return is_plain ? argument : in_single_quotes(argument);
}

}  // namespace outrider
