#include "text/chat_template/lexer.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/utf8.h"

namespace outrider::chat_template {
namespace {

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool starts_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

// Jinja reads every line ending as \n and drops the last one.
std::string unify_line_endings(const std::string& source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    out += source[i] == '\r' ? '\n' : source[i];
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(const std::string& source) : source_(unify_line_endings(source)), in_(source_) {}

  Result<std::vector<Token>> run() {
    while (at_ < in_.size()) {
      const size_t tag = find_tag();
      const char mark = tag + 2 < in_.size() ? in_[tag + 2] : '\0';
      add_text(tag, mark);
      if (tag == in_.size()) break;
      advance(tag + 2 + (mark == '-' || mark == '+' ? 1 : 0));
      RETURN_IF_ERROR(in_[tag + 1] == '#' ? comment()
                      : in_[tag + 1] == '%' && starts_raw()
                          ? raw()
                          : in_tag(in_[tag + 1] == '%' ? Token::Kind::kTagBegin : Token::Kind::kPrintBegin));
    }
    add(Token::Kind::kEnd);
    return std::move(tokens_);
  }

 private:
  void advance(size_t to) {
    line_ += static_cast<int>(std::count(in_.begin() + at_, in_.begin() + to, '\n'));
    at_ = to;
  }
  Token& add(Token::Kind kind, std::string text = {}) {
    tokens_.push_back({.kind = kind, .text = std::move(text), .line = line_});
    return tokens_.back();
  }

  size_t find_tag() const {
    for (size_t i = at_; i + 1 < in_.size(); ++i)
      if (in_[i] == '{' && (in_[i + 1] == '%' || in_[i + 1] == '{' || in_[i + 1] == '#')) return i;
    return in_.size();
  }

  // The text before the tag at `tag`, less the whitespace that the tag takes.
  void add_text(size_t tag, char mark) {
    std::string_view text = in_.substr(at_, tag - at_);
    if (tag < in_.size() && mark == '-') {
      while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
    } else if (tag < in_.size() && mark != '+' && in_[tag + 1] != '{') {
      const size_t line_start = text.rfind('\n') + 1;  // 0 if there is none
      const bool at_line_start = line_start > 0 || line_starting_;
      if (at_line_start && std::all_of(text.begin() + line_start, text.end(), is_space))
        text = text.substr(0, line_start);
    }
    if (!text.empty()) add(Token::Kind::kText, std::string(text));
    advance(tag);
  }

  // Past the end of a tag at `end` ("%}", "-}}"): "-" takes all whitespace, a block takes one line ending.
  void end_tag(size_t end, char mark, bool takes_newline) {
    size_t next = end + 2 + (mark != '\0' ? 1 : 0);
    if (mark == '-')
      while (next < in_.size() && is_space(in_[next])) ++next;
    else if (mark != '+' && takes_newline && next < in_.size() && in_[next] == '\n')
      ++next;
    advance(next);
    line_starting_ = in_[next - 1] == '\n';
  }

  Status comment() {
    const size_t end = in_.find("#}", at_);
    if (end == std::string_view::npos) return error_at(line_, "comment '{#' without '#}'");
    const char mark = end > at_ && (in_[end - 1] == '-' || in_[end - 1] == '+') ? in_[end - 1] : '\0';
    end_tag(mark != '\0' ? end - 1 : end, mark, /*takes_newline=*/true);
    return {};
  }

  // After "{%": whether the tag is one word and ends there; `end` is then where "%}" or its mark is.
  bool is_tag_of(std::string_view word, size_t at, size_t& end) const {
    while (at < in_.size() && is_space(in_[at])) ++at;
    if (!in_.substr(at).starts_with(word)) return false;
    at += word.size();
    while (at < in_.size() && is_space(in_[at])) ++at;
    end = at;
    return in_.substr(at).starts_with("%}") || in_.substr(at).starts_with("-%}") ||
           in_.substr(at).starts_with("+%}");
  }
  bool starts_raw() const {
    size_t end = 0;
    return is_tag_of("raw", at_, end);
  }

  // {% raw %}: text up to {% endraw %}, whatever it holds.
  Status raw() {
    const int begin_line = line_;
    size_t end = 0;
    is_tag_of("raw", at_, end);
    end_tag(end, in_[end] == '%' ? '\0' : in_[end], /*takes_newline=*/false);
    for (size_t tag = in_.find("{%", at_); tag != std::string_view::npos; tag = in_.find("{%", tag + 2)) {
      const char mark =
          tag + 2 < in_.size() && (in_[tag + 2] == '-' || in_[tag + 2] == '+') ? in_[tag + 2] : '\0';
      if (!is_tag_of("endraw", tag + (mark != '\0' ? 3 : 2), end)) continue;
      add_text(tag, mark);
      end_tag(end, in_[end] == '%' ? '\0' : in_[end], /*takes_newline=*/true);
      return {};
    }
    return error_at(begin_line, "{% raw %} without {% endraw %}");
  }

  Status in_tag(Token::Kind begin) {
    const bool is_print = begin == Token::Kind::kPrintBegin;
    const std::string_view closing = is_print ? "}}" : "%}";
    const int begin_line = line_;
    add(begin);
    std::string brackets;  // open ones; the tag does not end inside them
    for (;;) {
      while (at_ < in_.size() && is_space(in_[at_])) advance(at_ + 1);
      if (at_ == in_.size()) return error_at(begin_line, fmt::format("tag without '{}'", closing));
      if (brackets.empty()) {
        const char mark = in_[at_] == '-' || in_[at_] == '+' ? in_[at_] : '\0';
        if (in_.substr(at_ + (mark != '\0' ? 1 : 0)).starts_with(closing) && !(is_print && mark == '+')) {
          add(is_print ? Token::Kind::kPrintEnd : Token::Kind::kTagEnd);
          end_tag(at_, mark, !is_print);
          return {};
        }
      }
      RETURN_IF_ERROR(expression_token(brackets));
    }
  }

  Status expression_token(std::string& brackets) {
    const char c = in_[at_];
    if (c == '"' || c == '\'') return string_literal(c);
    if (is_digit(c)) return number();
    if (starts_name(c)) {
      size_t end = at_;
      while (end < in_.size() && (starts_name(in_[end]) || is_digit(in_[end]))) ++end;
      add(Token::Kind::kName, std::string(in_.substr(at_, end - at_)));
      advance(end);
      return {};
    }
    return operator_token(brackets);
  }

  Status operator_token(std::string& brackets) {
    for (const std::string_view two : {"==", "!=", ">=", "<=", "//", "**"})
      if (in_.substr(at_).starts_with(two)) {
        add(Token::Kind::kOperator, std::string(two));
        advance(at_ + 2);
        return {};
      }
    const char c = in_[at_];
    if (std::string_view("+-*/%~[](){}<>=.:|,").find(c) == std::string_view::npos)
      return error_at(line_,
                      fmt::format("unexpected character '{}'", in_.substr(at_, utf8_unit(in_, at_).length)));
    if (c == '(' || c == '[' || c == '{') brackets += c;
    if (c == ')' || c == ']' || c == '}') {
      const char open = c == ')' ? '(' : c == ']' ? '[' : '{';
      if (brackets.empty() || brackets.back() != open)
        return error_at(line_, fmt::format("unexpected '{}'", c));
      brackets.pop_back();
    }
    add(Token::Kind::kOperator, std::string(1, c));
    advance(at_ + 1);
    return {};
  }

  Status number() {
    size_t end = at_;
    while (end < in_.size() && is_digit(in_[end])) ++end;
    bool is_float = false;
    if (end + 1 < in_.size() && in_[end] == '.' && is_digit(in_[end + 1])) {
      is_float = true;
      for (++end; end < in_.size() && is_digit(in_[end]);) ++end;
    }
    if (end + 1 < in_.size() && (in_[end] == 'e' || in_[end] == 'E')) {
      const size_t sign = in_[end + 1] == '-' || in_[end + 1] == '+' ? 1 : 0;
      if (end + 1 + sign < in_.size() && is_digit(in_[end + 1 + sign])) {
        is_float = true;
        for (end += 1 + sign; end < in_.size() && is_digit(in_[end]);) ++end;
      }
    }
    if (end < in_.size() && (starts_name(in_[end])))
      return unsupported_at(line_, "number with letters in it");
    Token& token =
        add(is_float ? Token::Kind::kFloat : Token::Kind::kInteger, std::string(in_.substr(at_, end - at_)));
    const char* first = in_.data() + at_;
    const char* last = in_.data() + end;
    const auto result =
        is_float ? std::from_chars(first, last, token.number) : std::from_chars(first, last, token.integer);
    if (result.ec != std::errc())
      return error_at(line_, fmt::format("number {} is out of range", token.text));
    advance(end);
    return {};
  }

  Status string_literal(char quote) {
    const int line = line_;
    std::string value;
    size_t i = at_ + 1;
    for (;; ++i) {
      if (i >= in_.size()) return error_at(line, "string without its closing quote");
      if (in_[i] == quote) break;
      if (in_[i] != '\\') {
        value += in_[i];
        continue;
      }
      if (++i >= in_.size()) return error_at(line, "string without its closing quote");
      RETURN_IF_ERROR(escape(i, value));
    }
    add(Token::Kind::kString, std::move(value)).line = line;
    advance(i + 1);
    return {};
  }

  // Python's escapes; `i` is on the character after the backslash, and afterwards on the last one of the
  // escape.
  Status escape(size_t& i, std::string& out) {
    const char c = in_[i];
    constexpr std::string_view kNames = "ntrabfv\\'\"0", kValues("\n\t\r\a\b\f\v\\'\"\0", 11);
    if (c == '\n') return {};
    if (c == 'x' || c == 'u' || c == 'U') {
      const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      uint32_t codepoint = 0;
      const char* first = in_.data() + i + 1;
      const bool fits = i + digits < in_.size();
      if (!fits || std::from_chars(first, first + digits, codepoint, 16).ptr != first + digits ||
          codepoint > 0x10FFFF || (codepoint >= 0xD800 && codepoint <= 0xDFFF))
        return error_at(line_, fmt::format("bad escape \\{} in a string", c));
      append_utf8(out, codepoint);
      i += digits;
      return {};
    }
    if (c == 'N' || (c >= '1' && c <= '7') || (c == '0' && i + 1 < in_.size() && is_digit(in_[i + 1])))
      return unsupported_at(line_, fmt::format("escape \\{} in a string", c));
    const size_t named = kNames.find(c);
    if (named != std::string_view::npos)
      out += kValues[named];
    else
      out.append({'\\', c});  // Python keeps escapes it does not know
    return {};
  }

  const std::string source_;
  const std::string_view in_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the last tag ended a line
  std::vector<Token> tokens_;
};

}  // namespace

Status error_at(int line, const std::string& message) {
  return malformed(fmt::format("line {}: {}", line, message));
}

Status unsupported_at(int line, const std::string& construct) {
  return unsupported(fmt::format("line {}: {} is not supported", line, construct));
}

Result<std::vector<Token>> tokenize(const std::string& source) { return Lexer(source).run(); }

}  // namespace outrider::chat_template
