#include "serve/api/loose_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json_file.h"
#include "base/json_text.h"

namespace outrider {
namespace {

constexpr std::string_view kLooseBlanks = " \t\r\n";

// Bytes of text that an escape of this letter has behind it, as hexadecimal digits; 0: none.
size_t digits_behind(char letter) { return letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0; }

bool is_high(uint32_t code) { return code >= 0xD800 && code < 0xDC00; }  // the first of two surrogates
bool is_low(uint32_t code) { return code >= 0xDC00 && code < 0xE000; }

// The number that the first `digits` hexadecimal digits of the text write.
std::optional<uint32_t> code_of(std::string_view text, size_t digits) {
  uint32_t code = 0;
  const std::string_view hex = text.substr(0, digits);
  const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
  if (hex.size() < digits || error != std::errc() || end != hex.data() + hex.size()) return std::nullopt;
  return code;
}

std::string escape_of(uint32_t code) {
  if (code < 0x10000) return fmt::format("\\u{:04x}", code);
  code -= 0x10000;
  return fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (code >> 10), 0xDC00 + (code & 0x3FF));
}

// Letters before a quote in Python: r'...', f"...".
bool is_prefix(std::string_view word) {
  return word.size() <= 2 && word.find_first_not_of("rRbBfFuU") == std::string_view::npos;
}

bool is_blank(char c) { return kLooseBlanks.find(c) != std::string_view::npos; }

}  // namespace

std::string json_escaped(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      (out += '\\') += c;
    else if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (byte < 0x20)
      ((out += "\\u00") += kHex[byte >> 4]) += kHex[byte & 15];
    else
      out += c;
  }
  return out;
}

std::optional<bool> begins_arguments(std::string_view text, Notation notation) {
  const bool is_gemma = notation == Notation::kGemma;
  if (text.empty()) return std::nullopt;
  if (text.front() != (is_gemma ? '{' : '(')) return false;
  const size_t at = text.find_first_not_of(kLooseBlanks, 1);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = text.substr(at);
  if (rest.front() == (is_gemma ? '}' : ')')) return true;
  if (is_gemma && (rest.starts_with(kGemmaQuote) || rest.front() == '"')) return true;
  if (is_gemma && kGemmaQuote.starts_with(rest)) return std::nullopt;
  const size_t end = rest.find_first_of(is_gemma ? ":,{}[]<" : "=,()[]{}<'\":");
  if (end == std::string_view::npos) return std::nullopt;
  return end > 0 && rest[end] == (is_gemma ? ':' : '=');
}

size_t LooseArguments::read(std::string_view text, bool is_end, std::string& json) {
  size_t at = 0;
  std::string left_out;
  while (at < text.size() && !is_over_) {
    const std::string_view rest = text.substr(at);
    std::string& out = dropped_ > 0 ? left_out : json;
    std::string& of_text = slot_ == Slot::kValue ? out : slot_ == Slot::kKey ? key_ : left_out;
    const size_t more = quote_.empty() ? read_outside(rest, is_end, out) : read_text(rest, is_end, of_text);
    if (more == 0) break;
    at += more;
  }
  return at;
}

void LooseArguments::close_all(std::string& json) {
  std::string left_out;
  if (!quote_.empty()) end_text(dropped_ > 0 ? left_out : json);
  while (!levels_.empty()) close(dropped_ > 0 ? left_out : json);
}

// A quote ends a text of Python only where a value may end, since models write quotes within texts plainly.
size_t LooseArguments::read_text(std::string_view text, bool is_end, std::string& json) {
  if (has_escapes() && text.front() == '\\') return read_escape(text, is_end, json);
  if (!text.starts_with(quote_)) {
    if (!is_end && std::string_view(quote_).starts_with(text)) return 0;
    json += json_escaped(text.substr(0, 1));
    return 1;
  }
  if (has_escapes()) {
    const size_t behind = text.find_first_not_of(kLooseBlanks, quote_.size());
    if (behind == std::string_view::npos && !is_end) return 0;
    if (behind != std::string_view::npos &&
        std::string_view(",:)]}").find(text[behind]) == std::string_view::npos) {
      json += json_escaped(text.substr(0, 1));
      return 1;
    }
  }
  const size_t length = quote_.size();
  end_text(json);
  return length;
}

size_t LooseArguments::read_escape(std::string_view text, bool is_end, std::string& json) const {
  if (text.size() < 2) {
    if (is_end) json += "\\\\";
    return is_end ? 1 : 0;
  }
  const char letter = text[1];
  if (letter == '\'' || letter == '"') {
    if (is_raw_) json += "\\\\";
    json += json_escaped(text.substr(1, 1));
    return 2;
  }
  if (!is_raw_ && letter == '\n') return 2;  // continues the line
  if (!is_raw_ && std::string_view("ntrbf\\").find(letter) != std::string_view::npos) {
    (json += '\\') += letter;
    return 2;
  }
  if (!is_raw_ && digits_behind(letter) > 0) return read_code(text, is_end, json);
  json += "\\\\";  // of an escape that Python does not know
  return 1;
}

// A character by its number. Two surrogates are one character; one alone is none, and JSON has no place for
// it.
size_t LooseArguments::read_code(std::string_view text, bool is_end, std::string& json) const {
  const size_t digits = digits_behind(text[1]), length = 2 + digits;
  if (text.size() < length && !is_end) return 0;
  const auto code = code_of(text.substr(2), digits);
  if (!code || *code > 0x10FFFF) {
    json += "\\\\";
    return 1;
  }
  if (!is_high(*code) && !is_low(*code)) {
    json += escape_of(*code);
    return length;
  }
  const std::string_view next = text.substr(length);
  const bool may_be_pair = std::string_view("\\u").starts_with(next.substr(0, 2));
  if (is_high(*code) && may_be_pair && next.size() < 6 && !is_end) return 0;
  const auto low = next.starts_with("\\u") ? code_of(next.substr(2), 4) : std::nullopt;
  if (is_high(*code) && low && is_low(*low)) {
    json += escape_of(*code) + escape_of(*low);
    return length + 6;
  }
  json += "\\ufffd";
  return length;
}

// The length of the quote that opens a text here; 0: there is none, or more must come (npos).
size_t LooseArguments::quote_at(std::string_view text, bool is_end) const {
  const char c = text.front();
  if (notation_ == Notation::kGemma) {
    if (!word_.empty()) return 0;
    if (text.starts_with(kGemmaQuote)) return kGemmaQuote.size();
    if (c == '"') return 1;  // of a model that writes JSON
    return !is_end && kGemmaQuote.starts_with(text) ? std::string_view::npos : 0;
  }
  if (!is_prefix(word_) || (c != '\'' && c != '"')) return 0;
  const size_t same = std::min(text.find_first_not_of(c), text.size());
  if (same < 3 && same == text.size() && !is_end) return std::string_view::npos;
  return same >= 3 ? 3 : 1;
}

void LooseArguments::open_text(std::string_view quote, std::string& json) {
  quote_ = quote;
  is_raw_ = std::exchange(word_, {}).find_first_of("rR") != std::string::npos;
  if (slot_ == Slot::kKey && has_key_) slot_ = Slot::kNothing;
  if (slot_ == Slot::kKey) key_.clear();
  if (slot_ != Slot::kValue) return;
  begin_item(json);
  json += '"';
}

void LooseArguments::end_text(std::string& json) {
  quote_.clear();
  if (slot_ == Slot::kKey) has_key_ = true;
  if (slot_ != Slot::kValue) return;
  json += '"';
  slot_ = Slot::kNothing;
}

size_t LooseArguments::read_outside(std::string_view text, bool is_end, std::string& json) {
  const char c = text.front();
  const size_t quote = quote_at(text, is_end);
  if (quote == std::string_view::npos) return 0;
  if (quote > 0) {
    open_text(text.substr(0, quote), json);
    return quote;
  }
  if ((c == '(' || c == '[' || c == '{') && word_.empty()) {
    open(c, json);
  } else if (c == ')' || c == ']' || c == '}') {
    close(json);
  } else if (c == ',') {
    end_value(json);
    slot_ = levels_.back().close == '}' ? Slot::kKey : Slot::kValue;
  } else if ((c == ':' || c == '=') && slot_ == Slot::kKey) {
    end_key(json);
  } else if (slot_ != Slot::kNothing && (!is_blank(c) || !word_.empty())) {
    word_ += c;
  }
  return 1;
}

// The comma before a value of a list.
void LooseArguments::begin_item(std::string& json) {
  if (levels_.empty() || levels_.back().close == '}') return;
  if (!std::exchange(levels_.back().is_empty, false)) json += ", ";
}

void LooseArguments::end_key(std::string& json) {
  std::string word = std::exchange(word_, {});
  word.erase(word.find_last_not_of(kLooseBlanks) + 1);
  if (!std::exchange(levels_.back().is_empty, false)) json += ", ";
  json += '"' + (std::exchange(has_key_, false) ? key_ : json_escaped(word)) + "\": ";
  slot_ = Slot::kValue;
}

// Ends what stands before a comma or a bracket.
void LooseArguments::end_value(std::string& json) {
  std::string word = std::exchange(word_, {});
  word.erase(word.find_last_not_of(kLooseBlanks) + 1);
  has_key_ = false;
  if (std::exchange(slot_, Slot::kNothing) != Slot::kValue) return;
  if (word.empty() && levels_.back().close == ']') return;
  begin_item(json);
  if (word == "True" || word == "False") word[0] = static_cast<char>(word[0] - 'A' + 'a');
  if (word == "None" || word.empty()) word = "null";
  const auto value = parse_json(word, "a value");
  if (value.ok() && value->is_primitive() && !value->is_string())
    json += word;
  else
    (json += '"') += json_escaped(word) += '"';
}

// The outermost bracket holds arguments; in Python round ones within are lists.
void LooseArguments::open(char bracket, std::string& json) {
  const bool is_object = levels_.empty() || bracket == '{';
  if (slot_ != Slot::kValue && dropped_ == 0) dropped_ = levels_.size() + 1;
  if (dropped_ == 0) {
    begin_item(json);
    json += is_object ? '{' : '[';
  }
  levels_.push_back({.close = is_object ? '}' : ']'});
  slot_ = is_object ? Slot::kKey : Slot::kValue;
  has_key_ = false;
}

void LooseArguments::close(std::string& json) {
  end_value(json);
  json += levels_.back().close;
  levels_.pop_back();
  if (levels_.size() < dropped_) dropped_ = 0;
  is_over_ = levels_.empty();
}

}  // namespace outrider
