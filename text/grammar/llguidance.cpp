#include "text/grammar/llguidance.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <mutex>

#include "base/printable.h"
#include "base/threads.h"
#include "base/token_set.h"
#include "text/grammar/python_module.h"

// The library's interface, version 1: names and layout are its header's.
extern "C" {
struct LlgTokenizer;
struct LlgMatcher;
struct LlgLimits {
  size_t max_items_in_row;
  uint64_t initial_lexer_fuel;
  uint64_t step_lexer_fuel;
  size_t step_max_items;
  size_t max_lexer_states;
  size_t max_grammar_size;
  bool precompute_large_lexemes;
  bool verbose_errors;
};
struct LlgInit {
  const LlgTokenizer* tokenizer;
  uint32_t log_buffer_level;
  uint32_t log_stderr_level;
  bool ff_tokens_ok;
  bool backtrack_ok;
  LlgLimits limits;
  char later_versions[256];  // may write more fields
};
struct LlgTokenizerOptions {
  size_t struct_size;
  uint32_t vocab_size;
  uint32_t tok_eos;
  const uint32_t* token_lens;
  const uint8_t* token_bytes;
  const char* tokenizer_json;
  bool tokenize_assumes_string;
  size_t (*tokenize_fn)(const void*, const uint8_t*, size_t, uint32_t*, size_t);
  bool use_approximate_greedy_tokenize_fn;
  const void* tokenize_user_data;
  const char* const* slices;
  const uint32_t* tok_eos_extra;
  uint32_t tok_eos_extra_count;
};
}

namespace outrider {

struct LlgFunctions {
  LlgTokenizer* (*new_tokenizer)(const LlgTokenizerOptions*, char*, size_t);
  void (*free_tokenizer)(LlgTokenizer*);
  void (*set_defaults)(LlgInit*, const LlgTokenizer*);
  LlgMatcher* (*new_matcher)(const LlgInit*, const char*, const char*);
  LlgMatcher* (*clone_matcher)(const LlgMatcher*);
  void (*free_matcher)(LlgMatcher*);
  const char* (*get_error)(LlgMatcher*);
  bool (*is_error)(const LlgMatcher*);
  int32_t (*compute_mask)(LlgMatcher*, uint32_t*, size_t);
  int32_t (*consume_token)(LlgMatcher*, uint32_t);
  int32_t (*validate_tokens)(LlgMatcher*, const uint32_t*, size_t);
  bool (*is_stopped)(const LlgMatcher*);
};

namespace {

constexpr const char* kDefaultLibrary = "libllguidance.so";
constexpr size_t kShownBytes = 600;  // of an error

// On one line, whose parts stood on lines of their own.
std::string shown(const char* error) {
  std::string text;
  for (std::string_view left = error ? error : "no reason was given"; !left.empty();) {
    const std::string_view line = left.substr(0, left.find('\n'));
    left.remove_prefix(std::min(line.size() + 1, left.size()));
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string_view::npos) continue;
    if (!text.empty()) text += ' ';
    text += line.substr(begin, line.find_last_not_of(" \t\r") + 1 - begin);
  }
  std::replace(text.begin(), text.end(), '"', '\'');  // what is in quotes is the name of a field
  return printable(text, kShownBytes);
}

template <class Function>
void find(void* library, const char* name, Function& to, std::string& missing) {
  to = reinterpret_cast<Function>(dlsym(library, name));
  if (!to && missing.empty()) missing = name;
}

// Libraries stay loaded: they may have threads.
Result<void*> open_library(const std::string& file, int flags) {
  if (void* const library = dlopen(file.c_str(), flags)) return library;
  const char* const error = dlerror();
  const std::string why = error ? error : "it cannot be loaded";
  const bool is_of_python =
      why.find("undefined symbol: ") != std::string::npos && why.find("Py") != std::string::npos;
  if (!is_of_python) return not_found(printable(why));
  RETURN_IF_ERROR(provide_python_symbols(file));
  if (void* const library = dlopen(file.c_str(), flags)) return library;
  const char* const still = dlerror();
  return invalid_argument(printable(still ? still : why));
}

struct MatcherFree {
  const LlgFunctions* f;
  void operator()(LlgMatcher* matcher) const { f->free_matcher(matcher); }
};
using MatcherPtr = std::unique_ptr<LlgMatcher, MatcherFree>;

class Vocabulary;

class Matcher final : public TokenMatcher {
 public:
  Matcher(std::shared_ptr<const Vocabulary> vocabulary, const LlgFunctions& f, MatcherPtr matcher)
      : vocabulary_(std::move(vocabulary)), f_(f), matcher_(std::move(matcher)) {}

  Status allow(std::span<uint32_t> bits) override {
    if (f_.compute_mask(matcher_.get(), bits.data(), bits.size_bytes()) == 0) return {};
    return gave_up();
  }
  // A token that does not fit would leave the matcher in an error.
  bool accept(TokenId id) override {
    if (id.value() < 0 || f_.is_error(matcher_.get())) return false;
    const auto token = static_cast<uint32_t>(id.value());
    return f_.validate_tokens(matcher_.get(), &token, 1) == 1 && f_.consume_token(matcher_.get(), token) == 0;
  }
  Status error() const override { return f_.is_error(matcher_.get()) ? gave_up() : Status(); }
  std::unique_ptr<TokenMatcher> clone() const override {
    return std::make_unique<Matcher>(vocabulary_, f_,
                                     MatcherPtr(f_.clone_matcher(matcher_.get()), MatcherFree{&f_}));
  }
  bool is_over() const override { return f_.is_stopped(matcher_.get()) && !f_.is_error(matcher_.get()); }
  // Where every allowed token is a prefix of the longest allowed one, its bytes are certain. Most models
  // write certain bytes with as few tokens as they can.
  void foresee(std::span<const uint32_t> allowed, int32_t most, std::vector<TokenId>& ids) const override;

 private:
  Status gave_up() const {
    return unsupported(fmt::format(
        "the form is too much for the grammar library, which gave up behind the text so far ({}); "
        "send a simpler one",
        shown(f_.get_error(matcher_.get()))));
  }

  const std::shared_ptr<const Vocabulary> vocabulary_;
  const LlgFunctions& f_;
  const MatcherPtr matcher_;
};

class LlgGrammar final : public Grammar {
 public:
  LlgGrammar(std::shared_ptr<const Vocabulary> vocabulary, const LlgFunctions& f, int32_t vocab_size,
             MatcherPtr first)
      : vocabulary_(std::move(vocabulary)), f_(f), vocab_size_(vocab_size), first_(std::move(first)) {}
  std::unique_ptr<TokenMatcher> matcher() const override {
    const std::lock_guard lock(mutex_);
    return std::make_unique<Matcher>(vocabulary_, f_,
                                     MatcherPtr(f_.clone_matcher(first_.get()), MatcherFree{&f_}));
  }
  int32_t vocab_size() const override { return vocab_size_; }

 private:
  const std::shared_ptr<const Vocabulary> vocabulary_;
  const LlgFunctions& f_;
  const int32_t vocab_size_;
  mutable std::mutex mutex_;
  const MatcherPtr first_;
};

class Vocabulary final : public LlgVocabulary, public std::enable_shared_from_this<Vocabulary> {
 public:
  Vocabulary(std::shared_ptr<const LlGuidance> library, std::shared_ptr<const TokenTable> tokens)
      : library_(std::move(library)), tokens_(std::move(tokens)) {}
  ~Vocabulary() override {
    if (tokenizer_) f().free_tokenizer(tokenizer_);
  }

  Status open() {
    std::vector<uint32_t> lengths;
    std::string bytes;
    const Tokenizer& tokenizer = tokens_->tokenizer();
    for (int32_t i = 0; i < tokens_->vocab_size(); ++i) {
      const TokenId id(i);
      std::string token = tokens_->bytes_of(id);
      // Its mark of special tokens. Grammars may ask for them, and no text is one.
      if (token.empty() && i < tokenizer.vocab_size() && !tokenizer.token(id).empty())
        token = "\xff" + std::string(tokenizer.token(id));
      lengths.push_back(static_cast<uint32_t>(token.size()));
      bytes += token;
    }
    if (tokens_->ends().empty()) return invalid_argument("the model names no end-of-sequence token");
    std::vector<uint32_t> more;
    for (const TokenId id : std::span(tokens_->ends()).subspan(1))
      more.push_back(static_cast<uint32_t>(id.value()));
    LlgTokenizerOptions options{};
    options.struct_size = sizeof options;
    options.vocab_size = static_cast<uint32_t>(tokens_->vocab_size());
    options.tok_eos = static_cast<uint32_t>(tokens_->ends().front().value());
    options.token_lens = lengths.data();
    options.token_bytes = reinterpret_cast<const uint8_t*>(bytes.data());
    // With a tokenizer of the model's own it would allow but one spelling wherever the bytes are known, from
    // the beginning of the text, and tokens that do not go on from another spelling.
    options.use_approximate_greedy_tokenize_fn = true;
    options.tok_eos_extra = more.data();
    options.tok_eos_extra_count = static_cast<uint32_t>(more.size());
    char error[1024] = {};
    tokenizer_ = f().new_tokenizer(&options, error, sizeof error);
    return tokenizer_ ? Status() : invalid_argument("the vocabulary is refused: " + shown(error));
  }

  Result<std::shared_ptr<const Grammar>> compile(const char* kind, const std::string& text) const override {
    LlgInit init{};
    f().set_defaults(&init, tokenizer_);
    init.log_buffer_level = 0;
    init.log_stderr_level = 0;
    init.limits.verbose_errors = false;
    // It recurses along chains of rules and of "$ref", which may be as long as the text.
    constexpr size_t kCompilerStack = size_t{512} << 20;
    LlgMatcher* made = nullptr;
    try {
      run_with_stack(kCompilerStack, [&] { made = f().new_matcher(&init, kind, text.c_str()); });
    } catch (const NoThread& error) {
      return deadline_exceeded(error.what());  // it may succeed later
    }
    MatcherPtr matcher(made, MatcherFree{&f()});
    if (const char* const error = f().get_error(matcher.get())) {
      std::string text = shown(error);
      if (text.find("coerce_one_of") != std::string::npos)
        text += "; that is, add \"x-guidance\": {\"coerce_one_of\": true} to the schema";
      return invalid_argument(std::move(text));
    }
    return std::shared_ptr<const Grammar>(
        std::make_shared<LlgGrammar>(shared_from_this(), f(), tokens_->vocab_size(), std::move(matcher)));
  }

  const TokenTable& tokens() const { return *tokens_; }

 private:
  const LlgFunctions& f() const { return library_->functions(); }

  const std::shared_ptr<const LlGuidance> library_;
  const std::shared_ptr<const TokenTable> tokens_;
  LlgTokenizer* tokenizer_ = nullptr;
};

void Matcher::foresee(std::span<const uint32_t> bits, int32_t most, std::vector<TokenId>& ids) const {
  if (most < 1) return;
  const TokenTable& tokens = vocabulary_->tokens();
  std::vector<TokenId> allowed;
  for (size_t word = 0; word < bits.size(); ++word)
    for (uint32_t left = bits[word]; left != 0; left &= left - 1)
      allowed.emplace_back(static_cast<int32_t>(word * 32) + std::countr_zero(left));
  constexpr size_t kMaxSpellings = 64;  // certain bytes have fewer spellings than this
  if (allowed.empty() || allowed.size() > kMaxSpellings) return;
  const auto length = [&](TokenId id) { return tokens.bytes_of(id).size(); };
  const TokenId longest = *std::max_element(allowed.begin(), allowed.end(),
                                            [&](TokenId a, TokenId b) { return length(a) < length(b); });
  const auto begins = [&](TokenId id) {
    return length(id) > 0 && tokens.bytes_of(longest).starts_with(tokens.bytes_of(id));
  };
  if (std::all_of(allowed.begin(), allowed.end(), begins)) ids.push_back(longest);
}

}  // namespace

Result<std::shared_ptr<const LlGuidance>> LlGuidance::load(const std::vector<std::string>& libraries) {
  for (size_t i = 0; i + 1 < libraries.size(); ++i)
    RETURN_IF_ERROR(open_library(libraries[i], RTLD_NOW | RTLD_GLOBAL).status());
  std::string file = libraries.empty() ? kDefaultLibrary : libraries.back();
  Result<void*> opened = open_library(file, RTLD_LAZY | RTLD_LOCAL);
  if (libraries.empty() && !opened.ok())
    for (const std::string& installed : installed_grammar_libraries()) {
      opened = open_library(file = installed, RTLD_LAZY | RTLD_LOCAL);
      break;  // an installed library that fails to load is reported, not skipped
    }
  ASSIGN_OR_RETURN(void* const library, std::move(opened));
  auto f = std::make_shared<LlgFunctions>();
  std::string missing;
  find(library, "llg_new_tokenizer_v2", f->new_tokenizer, missing);
  find(library, "llg_free_tokenizer", f->free_tokenizer, missing);
  find(library, "llg_constraint_init_set_defaults", f->set_defaults, missing);
  find(library, "llg_new_matcher", f->new_matcher, missing);
  find(library, "llg_clone_matcher", f->clone_matcher, missing);
  find(library, "llg_free_matcher", f->free_matcher, missing);
  find(library, "llg_matcher_get_error", f->get_error, missing);
  find(library, "llg_matcher_is_error", f->is_error, missing);
  find(library, "llg_matcher_compute_mask_into", f->compute_mask, missing);
  find(library, "llg_matcher_consume_token", f->consume_token, missing);
  find(library, "llg_matcher_validate_tokens", f->validate_tokens, missing);
  find(library, "llg_matcher_is_stopped", f->is_stopped, missing);
  if (!missing.empty())
    return invalid_argument(
        fmt::format("{} has no function {}; it is not llguidance 1.3 or later", file, missing));
  return std::make_shared<const LlGuidance>(std::move(f), std::move(file));
}

Result<std::shared_ptr<const LlgVocabulary>> LlgVocabulary::make(std::shared_ptr<const LlGuidance> library,
                                                                 std::shared_ptr<const TokenTable> tokens) {
  auto vocabulary = std::make_shared<Vocabulary>(std::move(library), std::move(tokens));
  RETURN_IF_ERROR(vocabulary->open());
  return std::shared_ptr<const LlgVocabulary>(std::move(vocabulary));
}

}  // namespace outrider
