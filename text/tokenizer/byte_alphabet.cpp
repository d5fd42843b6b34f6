#include "text/tokenizer/byte_alphabet.h"

#include <array>
#include <charconv>

#include "base/log.h"
#include "base/utf8.h"

namespace outrider {
namespace {

constexpr bool stands_for_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

constexpr auto kCodepointOfByte = [] {
  std::array<char32_t, 256> table{};
  char32_t next = 256;
  for (int byte = 0; byte < 256; ++byte)
    table[byte] = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
  return table;
}();

constexpr size_t kAlphabetEnd = 256 + 68;
constexpr auto kByteOfCodepoint = [] {
  std::array<int16_t, kAlphabetEnd> table{};
  for (auto& byte : table) byte = -1;
  for (int byte = 0; byte < 256; ++byte) table[kCodepointOfByte[byte]] = static_cast<int16_t>(byte);
  return table;
}();

}  // namespace

std::string byte_character(uint8_t byte) {
  std::string out;
  append_utf8(out, kCodepointOfByte[byte]);
  return out;
}

std::optional<std::string> bytes_of_characters(std::string_view token) {
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const char32_t codepoint = next_codepoint(token, at);
    if (codepoint >= kAlphabetEnd || kByteOfCodepoint[codepoint] < 0) return std::nullopt;
    bytes += static_cast<char>(kByteOfCodepoint[codepoint]);
  }
  return bytes;
}

std::optional<uint8_t> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  uint8_t byte = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return byte;
}

std::string fallback_token(uint8_t byte) { return fmt::format("<0x{:02X}>", byte); }

}  // namespace outrider
