#include "base/utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

namespace outrider {
namespace {

struct LeadByte {
  size_t length;                    // of the whole character; 0: not a lead byte
  uint8_t low = 0x80, high = 0xBF;  // bounds of the second byte: no overlong forms, surrogates or > U+10FFFF
};

LeadByte classify(uint8_t lead) {
  if (lead < 0x80) return {.length = 1};
  if (lead < 0xC2) return {.length = 0};
  if (lead < 0xE0) return {.length = 2};
  if (lead == 0xE0) return {.length = 3, .low = 0xA0};
  if (lead == 0xED) return {.length = 3, .high = 0x9F};
  if (lead < 0xF0) return {.length = 3};
  if (lead == 0xF0) return {.length = 4, .low = 0x90};
  if (lead < 0xF4) return {.length = 4};
  if (lead == 0xF4) return {.length = 4, .high = 0x8F};
  return {.length = 0};
}

int combining_class(char32_t c) {
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class;
}

// Canonical order: runs of marks sorted by class, stable. utf8proc's own sort is quadratic in the run.
void order_marks(std::vector<utf8proc_int32_t>& text) {
  for (size_t i = 0; i < text.size();) {
    if (combining_class(text[i]) == 0) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < text.size() && combining_class(text[end]) != 0) ++end;
    std::stable_sort(text.begin() + i, text.begin() + end,
                     [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    i = end;
  }
}

}  // namespace

Utf8Unit utf8_unit(std::string_view bytes, size_t at) {
  using enum Utf8Unit::Kind;
  const LeadByte lead = classify(static_cast<uint8_t>(bytes[at]));
  if (lead.length == 0) return {kInvalid, 1};
  for (size_t i = 1; i < lead.length; ++i) {
    if (at + i == bytes.size()) return {kIncomplete, i};
    const auto byte = static_cast<uint8_t>(bytes[at + i]);
    const uint8_t low = i == 1 ? lead.low : 0x80;
    const uint8_t high = i == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) return {kInvalid, i};
  }
  return {kValid, lead.length};
}

std::optional<size_t> find_invalid_utf8(std::string_view bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Unit unit = utf8_unit(bytes, at);
    if (unit.kind != Utf8Unit::Kind::kValid) return at;
    at += unit.length;
  }
  return std::nullopt;
}

char32_t next_codepoint(std::string_view text, size_t& at) {
  const auto lead = static_cast<uint8_t>(text[at++]);
  if (lead < 0x80) return lead;
  const int more = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
  char32_t codepoint = lead & (0x3Fu >> more);
  for (int i = 0; i < more; ++i) codepoint = codepoint << 6 | (static_cast<uint8_t>(text[at++]) & 0x3Fu);
  return codepoint;
}

size_t previous_boundary(std::string_view text, size_t at) {
  do --at;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80);
  return at;
}

void append_utf8(std::string& out, char32_t codepoint) {
  utf8proc_uint8_t buffer[4];
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(codepoint), buffer);
  out.append(reinterpret_cast<const char*>(buffer), static_cast<size_t>(length));
}

std::string take_whole_characters(std::string& pending) {
  std::string whole;
  whole.reserve(pending.size());
  size_t at = 0;
  while (at < pending.size()) {
    const Utf8Unit unit = utf8_unit(pending, at);
    if (unit.kind == Utf8Unit::Kind::kIncomplete) break;
    if (unit.kind == Utf8Unit::Kind::kValid)
      whole.append(pending, at, unit.length);
    else
      whole += kReplacementCharacter;
    at += unit.length;
  }
  pending.erase(0, at);
  return whole;
}

std::string repair_utf8(std::string bytes) {
  std::string text = take_whole_characters(bytes);
  if (!bytes.empty()) text += kReplacementCharacter;
  return text;
}

bool is_whitespace(char32_t c) {
  if ((c >= 0x09 && c <= 0x0D) || c == 0x85) return true;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
         category == UTF8PROC_CATEGORY_ZP;
}

bool is_word_character(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
         category == UTF8PROC_CATEGORY_PC;
}

bool is_letter(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool is_printable(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return c == ' ' || (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_SO);
}

bool is_numeric(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

char32_t to_upper(char32_t c) {
  return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c)));
}
char32_t to_lower(char32_t c) {
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}

std::string normalize(std::string_view text, NormalForm form) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; }))
    return std::string(text);
  const bool composed = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                      (compatible ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> codepoints;
  codepoints.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    utf8proc_int32_t parts[32];  // the longest decomposition is 18 (U+FDFA)
    int boundary_class = 0;
    const auto codepoint = static_cast<utf8proc_int32_t>(next_codepoint(text, at));
    const auto count = utf8proc_decompose_char(codepoint, parts, 32, options, &boundary_class);
    codepoints.insert(codepoints.end(), parts, parts + std::clamp<utf8proc_ssize_t>(count, 0, 32));
  }
  order_marks(codepoints);
  if (composed) {
    const auto compose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    const auto count = utf8proc_normalize_utf32(codepoints.data(),
                                                static_cast<utf8proc_ssize_t>(codepoints.size()), compose);
    codepoints.resize(static_cast<size_t>(count));
  }
  std::string out;
  out.reserve(text.size());
  for (const auto codepoint : codepoints) append_utf8(out, static_cast<char32_t>(codepoint));
  return out;
}

}  // namespace outrider
