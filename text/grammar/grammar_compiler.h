// Makes grammars of what requests ask for. Choices need nothing; JSON schemas, regular expressions and Lark
// grammars are the business of llguidance, a library that is looked for when the program runs and is no part
// of it (github.com/guidance-ai/llguidance, its C interface).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/grammar/grammar.h"
#include "text/tokenizer/tokenizer.h"

namespace outrider {

struct GrammarSpec {
  enum class Kind : uint8_t { kChoice, kJson, kRegex, kLark };
  Kind kind = Kind::kChoice;
  std::string text;                  // a JSON schema, a regular expression, a Lark grammar
  std::vector<std::string> choices;  // of kChoice
  bool operator==(const GrammarSpec&) const = default;
};

constexpr size_t kMaxGrammarBytes = size_t{256} << 10;  // of GrammarSpec::text

struct GrammarOptions {
  // Files of libraries: the last is llguidance, those before it are loaded first, for symbols that it needs.
  // None: libllguidance.so, where the system finds it, or else the one that pip installed, when it is needed.
  std::vector<std::string> libraries;
  std::vector<TokenId> ends;  // end-of-sequence tokens
  int32_t vocab_size = 0;     // of the model
};

// Safe to share between threads. What a compilation takes, in bytes and time, is bounded: by
// kMaxGrammarBytes and by the library's own limits, some seconds at worst. The last ones are kept.
class GrammarCompiler {
 public:
  virtual ~GrammarCompiler() = default;
  // kInvalidArgument: the library's own words, or a limit; kUnsupported: there is no library.
  virtual Result<std::shared_ptr<const Grammar>> compile(const GrammarSpec& spec) const = 0;
  // OK, or why there is none and what to do.
  virtual Status check_library() const = 0;
  // The file that the library was loaded from.
  virtual Result<std::string> library_file() const = 0;
};

// `tokenizer` outlives it and its grammars. An error names --grammar-library.
Result<std::unique_ptr<GrammarCompiler>> make_grammar_compiler(const Tokenizer& tokenizer,
                                                               GrammarOptions options);

}  // namespace outrider
