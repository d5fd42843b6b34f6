// UTF-8: validation, stepping, lossy repair, Unicode classes and normal forms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace outrider {

// The unit that starts at one byte of a text that may not be UTF-8. Invalid units are maximal subparts
// (Unicode 15, table 3-7 and section 3.9), the unit that one U+FFFD stands for.
struct Utf8Unit {
  enum class Kind { kValid, kInvalid, kIncomplete };  // kIncomplete: more bytes could make it valid
  Kind kind;
  size_t length;  // bytes, at least 1
};
Utf8Unit utf8_unit(std::string_view bytes, size_t at);

std::optional<size_t> find_invalid_utf8(std::string_view bytes);  // offset of the first bad byte

// Takes valid UTF-8 only; `at` is on a boundary and is moved past the character.
char32_t next_codepoint(std::string_view text, size_t& at);
size_t previous_boundary(std::string_view text, size_t at);
void append_utf8(std::string& out, char32_t codepoint);

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// Moves whole characters from `pending` to the result, invalid units as U+FFFD; keeps an incomplete tail.
std::string take_whole_characters(std::string& pending);
std::string repair_utf8(std::string bytes);

bool is_whitespace(char32_t codepoint);      // Unicode White_Space
bool is_word_character(char32_t codepoint);  // \w of Unicode regular expressions
// Simple case mappings: one character to one.
char32_t to_upper(char32_t codepoint);
char32_t to_lower(char32_t codepoint);
bool is_letter(char32_t codepoint);  // categories L*
bool is_printable(
    char32_t codepoint);  // no control, format, surrogate, private, unassigned or separator; U+0020 is
bool is_numeric(char32_t codepoint);  // categories Nd, Nl, No

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
// O(n log n) for any text, also for megabytes of combining marks.
std::string normalize(std::string_view text, NormalForm form);

}  // namespace outrider
