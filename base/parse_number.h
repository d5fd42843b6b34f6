// Numbers in text, whole: "12" is one, "12 " and "12x" are none.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace outrider {

// Decimal. Empty: not a number, or one that the type cannot hold. Of floating point "nan" and "inf" are
// numbers.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace outrider
