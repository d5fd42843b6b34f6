// The GPT-2 alphabet: each byte written as one printable character, so that any byte string is a token
// string. Printable Latin-1 stands for itself, the other 68 bytes are U+0100.. in order (Radford et al. 2019,
// encoder.py).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace outrider {

std::string byte_character(uint8_t byte);  // ' ' -> "Ġ"
// The bytes a token string stands for, or nothing if it has a character outside the alphabet.
std::optional<std::string> bytes_of_characters(std::string_view token);

// "<0x0A>" -> 0x0A: the byte-fallback tokens of SentencePiece.
std::optional<uint8_t> fallback_byte(std::string_view token);
std::string fallback_token(uint8_t byte);

}  // namespace outrider
