// Parses a whole text as a number: "12" is valid, "12 " and "12x" are not.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace outrider {

// Decimal. Empty: not a number, or out of the type's range. For floating point, "nan" and "inf" are numbers.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace outrider
