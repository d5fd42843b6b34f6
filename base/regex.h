// Regular expressions as tokenizers and configs write them (Oniguruma, Ruby syntax), run by PCRE2 with limits
// on its work.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace outrider {

struct TextRange {
  size_t begin = 0, end = 0;  // bytes
  bool operator==(const TextRange&) const = default;
};

class Regex {
 public:
  // kUnsupported where the two dialects differ in a way that is not translated.
  static Result<Regex> compile(const std::string& pattern);
  // All matches, left to right, not overlapping. `text` must be valid UTF-8.
  Result<std::vector<TextRange>> find_all(std::string_view text) const;
  // Whether a match begins where `text`, valid UTF-8, begins. For names, which are short: an expression that
  // takes more than 100,000 steps is kResourceExhausted.
  Result<bool> matches_start(std::string_view text) const;

 private:
  struct Code;
  explicit Regex(std::shared_ptr<const Code> code) : code_(std::move(code)) {}
  std::shared_ptr<const Code> code_;  // immutable, so one may be shared by copies
};

}  // namespace outrider
