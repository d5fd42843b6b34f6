#include "serve/api/loose_arguments.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json_file.h"
#include "base/json_text.h"

namespace outrider {
namespace {

constexpr std::string_view kLooseBlanks = " \t\r\n";

// Bytes of text that an escape of this letter has behind it, as hexadecimal digits; 0: none.
size_t digits_behind(char letter) { return letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0; }

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

size_t LooseArguments::read(std::string_view text, bool is_end, std::string& json) {
  size_t at = 0;
  while (at < text.size() && !is_over_) {
    const std::string_view rest = text.substr(at);
    const size_t more = quote_.empty() ? read_outside(rest, is_end, json) : read_text(rest, is_end, json);
    if (more == 0) break;
    at += more;
  }
  return at;
}

// A quote ends a text of Python only where a value may end, since models write quotes within texts plainly.
size_t LooseArguments::read_text(std::string_view text, bool is_end, std::string& json) {
  if (notation_ == Notation::kPython && text.front() == '\\') return read_escape(text, is_end, json);
  if (!text.starts_with(quote_)) {
    if (!is_end && std::string_view(quote_).starts_with(text)) return 0;
    json += json_escaped(text.substr(0, 1));
    return 1;
  }
  if (notation_ == Notation::kPython) {
    const size_t behind = text.find_first_not_of(kLooseBlanks, quote_.size());
    if (behind == std::string_view::npos && !is_end) return 0;
    if (behind != std::string_view::npos &&
        std::string_view(",:)]}").find(text[behind]) == std::string_view::npos) {
      json += json_escaped(text.substr(0, 1));
      return 1;
    }
  }
  json += '"';
  return std::exchange(quote_, {}).size();
}

size_t LooseArguments::read_escape(std::string_view text, bool is_end, std::string& json) const {
  if (text.size() < 2) {
    if (is_end) json += "\\\\";
    return is_end ? 1 : 0;
  }
  const char letter = text[1];
  if (letter == '\n') return 2;  // continues the line
  if (letter == 'n' || letter == 't' || letter == 'r' || letter == 'b' || letter == 'f' || letter == '\\') {
    (json += '\\') += letter;
    return 2;
  }
  if (letter == '\'' || letter == '"') {
    json += json_escaped(text.substr(1, 1));
    return 2;
  }
  const size_t digits = digits_behind(letter);
  if (digits > 0 && text.size() < 2 + digits && !is_end) return 0;
  const std::string_view hex = text.substr(2, digits);
  const bool are_digits = hex.size() == digits && std::all_of(hex.begin(), hex.end(), [](unsigned char c) {
                            return std::isxdigit(c) != 0;
                          });
  if ((letter == 'x' || letter == 'u') && are_digits) {
    json += "\\u" + std::string(4 - digits, '0') + std::string(hex);
    return 2 + digits;
  }
  json += "\\\\";  // of an escape that Python does not know
  return 1;
}

// The length of the quote that opens a text here; 0: there is none, or more must come (npos).
size_t LooseArguments::quote_at(std::string_view text, bool is_end) {
  if (!word_.empty()) return 0;
  if (notation_ == Notation::kGemma) {
    if (text.starts_with(kGemmaQuote)) return kGemmaQuote.size();
    return !is_end && kGemmaQuote.starts_with(text) ? std::string_view::npos : 0;
  }
  const char c = text.front();
  if (c != '\'' && c != '"') return 0;
  const size_t same = std::min(text.find_first_not_of(c), text.size());
  if (same < 3 && same == text.size() && !is_end) return std::string_view::npos;
  return same >= 3 ? 3 : 1;
}

size_t LooseArguments::read_outside(std::string_view text, bool is_end, std::string& json) {
  const char c = text.front();
  const size_t quote = quote_at(text, is_end);
  if (quote == std::string_view::npos) return 0;
  if (quote > 0) {
    quote_ = text.substr(0, quote);
    begin_value(json);
    json += '"';
    return quote;
  }
  const bool opens = (c == '(' || c == '[' || c == '{') && word_.empty();
  if (opens) {
    open(c, json);
  } else if (c == ')' || c == ']' || c == '}') {
    close(json);
  } else if (c == ',') {
    end_word(json);
    needs_comma_ = true;
    is_key_ = nest_.ends_with('}');
  } else if ((c == ':' || c == '=') && is_key_) {
    end_word(json);
    is_key_ = false;
    json += ": ";
  } else if (!is_blank(c) || !word_.empty()) {
    word_ += c;
  }
  return 1;
}

void LooseArguments::begin_value(std::string& json) {
  if (std::exchange(needs_comma_, false)) json += ", ";
}

void LooseArguments::end_word(std::string& json) {
  if (word_.empty()) return;
  std::string word = std::exchange(word_, {});
  word.erase(word.find_last_not_of(kLooseBlanks) + 1);
  begin_value(json);
  if (word == "True" || word == "False") word[0] = static_cast<char>(word[0] - 'A' + 'a');
  if (word == "None") word = "null";
  const auto value = parse_json(word, "a value");
  if (!is_key_ && value.ok() && value->is_primitive() && !value->is_string())
    json += word;
  else
    (json += '"') += json_escaped(word) += '"';
}

// The outermost bracket holds arguments; in Python round ones within are lists.
void LooseArguments::open(char bracket, std::string& json) {
  begin_value(json);
  const bool is_object = nest_.empty() || bracket == '{';
  json += is_object ? '{' : '[';
  nest_ += is_object ? '}' : ']';
  is_key_ = is_object;
}

void LooseArguments::close(std::string& json) {
  end_word(json);
  needs_comma_ = is_key_ = false;
  json += nest_.back();
  nest_.pop_back();
  is_over_ = nest_.empty();
}

}  // namespace outrider
