#include "base/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <optional>

#include "base/utf8.h"

namespace outrider {
namespace {

constexpr uint32_t kMatchLimit = 50'000'000;   // steps of one match
constexpr uint32_t kNameMatchLimit = 100'000;  // of one match of a name
constexpr uint32_t kHeapLimitKib = 64 * 1024;  // of the interpreter, where there is no JIT
constexpr size_t kMaxJitStackBytes = 16u << 20;
constexpr size_t kMaxPatternBytes = 16 * 1024;
constexpr uint32_t kMaxParentheses = 64;

template <auto Free>
struct Deleter {
  template <class T>
  void operator()(T* p) const {
    Free(p);
  }
};
using CompileContext = std::unique_ptr<pcre2_compile_context, Deleter<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Deleter<pcre2_jit_stack_free>>;

std::string error_text(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

// PCRE2's \s holds U+180E and its \w lacks marks; Oniguruma's follow Unicode.
constexpr std::string_view kSpaceClass = R"(\t-\r\x{85}\p{Z})";
constexpr std::string_view kWordClass = R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc})";

class DialectTranslator {
 public:
  explicit DialectTranslator(const std::string& pattern) : in_(pattern) {}

  Result<std::string> run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        RETURN_IF_ERROR(escape());
      } else {
        RETURN_IF_ERROR(in_class_ ? inside_class(c) : outside_class(c));
        out_ += c;
        ++at_;
      }
    }
    return out_;
  }

 private:
  Status escape() {
    if (at_ + 1 == in_.size()) return malformed("pattern ends in a backslash");
    const char c = in_[at_ + 1];
    if (c == 's' || c == 'w') return shorthand(c == 's' ? kSpaceClass : kWordClass, false);
    if (c == 'S' || c == 'W') return shorthand(c == 'S' ? kSpaceClass : kWordClass, true);
    if (c == 'h' || c == 'H' || c == 'R' || c == 'X' || c == 'K' || c == 'G' || c == 'C')
      return unsupported(fmt::format("\\{} in a pattern", c));
    size_t end = at_ + 2;
    if ((c == 'p' || c == 'P' || c == 'x') && end < in_.size() && in_[end] == '{') {
      end = in_.find('}', end);
      if (end == std::string::npos) return malformed("'{' without '}' in a pattern");
      ++end;
    }
    out_.append(in_, at_, end - at_);
    at_ = end;
    return {};
  }

  Status shorthand(std::string_view members, bool negated) {
    if (in_class_ && negated) return unsupported("\\S or \\W inside [...] in a pattern");
    out_ += in_class_ ? std::string(members) : fmt::format("[{}{}]", negated ? "^" : "", members);
    at_ += 2;
    return {};
  }

  Status inside_class(char c) {
    if (c == '[' && in_.compare(at_, 2, "[:") != 0) return unsupported("a nested [...] in a pattern");
    if (c == '&' && in_.compare(at_, 2, "&&") == 0) return unsupported("&& inside [...] in a pattern");
    if (c == ']') in_class_ = false;
    return {};
  }

  Status outside_class(char c) {
    if (c == '[') in_class_ = true;
    // Ruby repeats the group, PCRE2 makes the quantifier possessive.
    if (c == '}' && in_.compare(at_, 2, "}+") == 0) return unsupported("'+' after {n,m} in a pattern");
    if (c == '(' && in_.compare(at_, 2, "(*") == 0) return unsupported("(*...) in a pattern");
    return {};
  }

  const std::string& in_;
  std::string out_;
  size_t at_ = 0;
  bool in_class_ = false;
};

// Matches of one expression in one text.
class Search {
 public:
  Search(const pcre2_code* code, std::string_view text, uint32_t match_limit)
      : code_(code),
        text_(text),
        context_(pcre2_match_context_create(nullptr)),
        data_(pcre2_match_data_create_from_pattern(code, nullptr)) {
    pcre2_set_match_limit(context_.get(), match_limit);
    pcre2_set_heap_limit(context_.get(), kHeapLimitKib);
  }

  // The first match that begins at `at` or behind it.
  Result<std::optional<TextRange>> from(size_t at, uint32_t options) {
    // Without NO_UTF_CHECK every call would check the whole text, so a loop of calls would take quadratic
    // time.
    int rc = match(at, options | PCRE2_NO_UTF_CHECK);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      stack_.reset(pcre2_jit_stack_create(64 * 1024, kMaxJitStackBytes, nullptr));
      pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
      rc = match(at, options | PCRE2_NO_UTF_CHECK);
    }
    if (rc == PCRE2_ERROR_NOMATCH) return std::optional<TextRange>();
    if (rc < 0)
      return resource_exhausted(fmt::format("matching a pattern at byte {}: {}", at, error_text(rc)));
    const PCRE2_SIZE* found = pcre2_get_ovector_pointer(data_.get());
    return std::optional(TextRange{found[0], found[1]});
  }

 private:
  int match(size_t at, uint32_t options) {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(), at, options,
                       data_.get(), context_.get());
  }

  const pcre2_code* code_;
  std::string_view text_;
  MatchContext context_;
  MatchData data_;
  JitStack stack_;  // made only if a match needs more than the 32 KiB that PCRE2 takes from ours
};

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  ~Code() { pcre2_code_free(code); }
};

Result<Regex> Regex::compile(const std::string& pattern) {
  if (pattern.size() > kMaxPatternBytes)
    return unsupported(fmt::format("a pattern of {} bytes", pattern.size()));
  ASSIGN_OR_RETURN(const std::string translated, DialectTranslator(pattern).run());
  CompileContext context(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), kMaxParentheses);
  int error = 0;
  PCRE2_SIZE error_at = 0;
  // In Ruby syntax ^ and $ are always line anchors.
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  auto code = std::make_shared<Code>();
  code->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), options,
                             &error, &error_at, context.get());
  if (code->code == nullptr)
    return malformed(fmt::format("pattern '{}': {} at byte {}", pattern, error_text(error), error_at));
  pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE);  // without JIT the interpreter gives the same answers
  return Regex(std::move(code));
}

Result<std::vector<TextRange>> Regex::find_all(std::string_view text) const {
  Search search(code_->code, text, kMatchLimit);
  std::vector<TextRange> ranges;
  for (size_t at = 0; at <= text.size();) {
    ASSIGN_OR_RETURN(const std::optional<TextRange> found, search.from(at, 0));
    if (!found) break;
    if (found->end > found->begin) ranges.push_back(*found);
    at = found->end;
    if (found->end <= found->begin) {  // empty: go on after the next character
      if (at == text.size()) break;
      next_codepoint(text, at);
    }
  }
  return ranges;
}

Result<bool> Regex::matches_start(std::string_view text) const {
  Search search(code_->code, text, kNameMatchLimit);
  ASSIGN_OR_RETURN(const std::optional<TextRange> found, search.from(0, PCRE2_ANCHORED));
  return found.has_value();
}

}  // namespace outrider
