// llguidance, loaded at run time through its C interface, which is declared here as far as it is used.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/grammar/grammar.h"
#include "text/grammar/token_table.h"

namespace outrider {

struct LlgFunctions;

class LlGuidance {
 public:
  // `libraries`: as GrammarOptions::libraries. An error names the file, or the places without one
  // (kNotFound).
  static Result<std::shared_ptr<const LlGuidance>> load(const std::vector<std::string>& libraries);

  LlGuidance(std::shared_ptr<const LlgFunctions> functions, std::string file)
      : functions_(std::move(functions)), file_(std::move(file)) {}
  const LlgFunctions& functions() const { return *functions_; }
  const std::string& file() const { return file_; }

 private:
  const std::shared_ptr<const LlgFunctions> functions_;
  const std::string file_;
};

// Its view of a vocabulary; takes some hundred milliseconds for a large one.
class LlgVocabulary {
 public:
  static Result<std::shared_ptr<const LlgVocabulary>> make(std::shared_ptr<const LlGuidance> library,
                                                           std::shared_ptr<const TokenTable> tokens);
  virtual ~LlgVocabulary() = default;
  // `kind`: "json", "regex" or "lark". Errors are the library's words.
  virtual Result<std::shared_ptr<const Grammar>> compile(const char* kind, const std::string& text) const = 0;
};

}  // namespace outrider
