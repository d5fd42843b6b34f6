// Cuts a template into text and the tokens of its tags, with Jinja's whitespace rules as chat templates are
// rendered: trim_blocks, lstrip_blocks, "-" and "+" marks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace outrider::chat_template {

struct Token {
  enum class Kind {
    kText,
    kTagBegin,
    kTagEnd,
    kPrintBegin,
    kPrintEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd
  };
  Kind kind = Kind::kEnd;
  std::string text;  // of strings: without quotes and escapes
  int64_t integer = 0;
  double number = 0;
  int line = 1;

  bool is_name(const char* name) const { return kind == Kind::kName && text == name; }
  bool is_operator(const char* symbol) const { return kind == Kind::kOperator && text == symbol; }
};

// The last token is kEnd. Errors name the line.
Result<std::vector<Token>> tokenize(const std::string& source);

Status error_at(int line, const std::string& message);  // kMalformed
Status unsupported_at(int line, const std::string& construct);

}  // namespace outrider::chat_template
