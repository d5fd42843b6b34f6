#include "text/grammar/grammar_compiler.h"

#include <fmt/format.h>

#include <deque>
#include <mutex>
#include <utility>

#include "text/grammar/choice_grammar.h"
#include "text/grammar/llguidance.h"

namespace outrider {
namespace {

constexpr size_t kKept = 32;  // grammars that were compiled last

const char* library_name_of(GrammarSpec::Kind kind) {
  return kind == GrammarSpec::Kind::kJson ? "json" : kind == GrammarSpec::Kind::kRegex ? "regex" : "lark";
}

class Compiler final : public GrammarCompiler {
 public:
  Compiler(const Tokenizer& tokenizer, GrammarOptions options)
      : tokenizer_(tokenizer), options_(std::move(options)) {}

  Result<std::shared_ptr<const Grammar>> compile(const GrammarSpec& spec) const override {
    if (spec.kind != GrammarSpec::Kind::kChoice) RETURN_IF_ERROR(check_library());
    if (spec.text.size() > kMaxGrammarBytes)
      return invalid_argument(
          fmt::format("the grammar has {} bytes: at most {}", spec.text.size(), kMaxGrammarBytes));
    if (spec.text.find('\0') != std::string::npos) return invalid_argument("the grammar has a zero byte");
    if (auto kept = find(spec)) return kept;
    ASSIGN_OR_RETURN(auto grammar, make(spec));
    const std::lock_guard lock(mutex_);
    kept_.emplace_front(spec, grammar);
    if (kept_.size() > kKept) kept_.pop_back();
    return grammar;
  }

  Status check_library() const override {
    const auto& library = loaded();
    if (library.ok()) return {};
    if (library.status().code() != StatusCode::kNotFound)
      return unavailable(fmt::format("its library cannot be used: {}", library.status().message()));
    return unavailable(
        "run `pip install llguidance` and start again, or give --grammar-library FILE: there is no library "
        "for "
        "it, neither libllguidance.so where the system finds libraries nor llguidance among the packages of "
        "the Python that is first in PATH, of the user and of the system; choices need none");
  }

  Result<std::string> library_file() const override {
    const auto& library = loaded();
    return library.ok() ? Result<std::string>((*library)->file()) : library.status();
  }

 private:
  // When it is first needed: most runs ask for no form.
  const Result<std::shared_ptr<const LlGuidance>>& loaded() const {
    std::call_once(has_library_, [this] { library_ = LlGuidance::load(options_.libraries); });
    return library_;
  }

  std::shared_ptr<const Grammar> find(const GrammarSpec& spec) const {
    const std::lock_guard lock(mutex_);
    for (const auto& [of, grammar] : kept_)
      if (of == spec) return grammar;
    return nullptr;
  }

  Result<std::shared_ptr<const Grammar>> make(const GrammarSpec& spec) const {
    std::call_once(has_tokens_, [this] {
      tokens_ = std::make_shared<const TokenTable>(tokenizer_, options_.ends, options_.vocab_size);
    });
    if (spec.kind == GrammarSpec::Kind::kChoice) return make_choice_grammar(tokens_, spec.choices);
    std::call_once(has_vocabulary_, [this] {
      auto made = LlgVocabulary::make(*loaded(), tokens_);
      made.ok() ? void(vocabulary_ = *made) : void(why_none_ = made.status());
    });
    RETURN_IF_ERROR(why_none_);
    return vocabulary_->compile(library_name_of(spec.kind), spec.text);
  }

  const Tokenizer& tokenizer_;
  const GrammarOptions options_;
  // Made when first needed.
  mutable std::once_flag has_library_, has_tokens_, has_vocabulary_;
  mutable Result<std::shared_ptr<const LlGuidance>> library_ = not_found("");
  mutable std::shared_ptr<const TokenTable> tokens_;
  mutable std::shared_ptr<const LlgVocabulary> vocabulary_;
  mutable Status why_none_;
  mutable std::mutex mutex_;  // guards what follows
  mutable std::deque<std::pair<GrammarSpec, std::shared_ptr<const Grammar>>> kept_;
};

}  // namespace

Result<std::unique_ptr<GrammarCompiler>> make_grammar_compiler(const Tokenizer& tokenizer,
                                                               GrammarOptions options) {
  const bool is_named = !options.libraries.empty();
  auto compiler = std::make_unique<Compiler>(tokenizer, std::move(options));
  if (is_named) RETURN_IF_ERROR(compiler->library_file().status().in("--grammar-library"));
  return std::unique_ptr<GrammarCompiler>(std::move(compiler));
}

}  // namespace outrider
