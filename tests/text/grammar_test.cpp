// The tokens that a grammar allows, against brute force over the vocabulary. llguidance is tested if
// installed.
#include <cstdlib>
#include <set>

#include "base/token_set.h"
#include "tests/text/tokenizer_fixtures.h"
#include "text/grammar/choice_grammar.h"
#include "text/grammar/grammar_compiler.h"
#include "text/grammar/token_limits.h"

namespace outrider {
namespace {

constexpr int32_t kPadding = 13;  // rows of the head that no token has

struct Vocabulary {
  explicit Vocabulary(const std::string& name)
      : tokenizer(load_or_die(source_dir() / "tests/goldens/tokenizers" / name)),
        size(tokenizer->vocab_size() + kPadding) {}
  std::shared_ptr<const TokenTable> table() const {
    return std::make_shared<const TokenTable>(*tokenizer, ends, size);
  }
  std::unique_ptr<Tokenizer> tokenizer;
  int32_t size;
  std::vector<TokenId> ends{TokenId(0), TokenId(3)};
};

std::set<int32_t> allowed_by(TokenMatcher& matcher, int32_t vocab_size) {
  std::vector<uint32_t> bits(words_of_bits(vocab_size), 0xffffffff);
  const Status status = matcher.allow(bits);
  EXPECT_TRUE(status.ok()) << status.message();
  std::set<int32_t> ids;
  for (int32_t id = 0; id < vocab_size; ++id)
    if (bits[static_cast<size_t>(id / 32)] >> id % 32 & 1) ids.insert(id);
  return ids;
}

std::vector<int32_t> with_bytes(const Vocabulary& v, const std::string& bytes) {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < v.tokenizer->vocab_size(); ++id)
    if (v.tokenizer->token_bytes(TokenId(id)) == bytes) ids.push_back(id);
  return ids;
}

TEST(TokenLimits, AllowAndForbidTokensAndRuns) {
  const Vocabulary v("llama3");
  const auto limited = [&](TokenLimits limits, std::shared_ptr<const Grammar> form = nullptr) {
    return limit_tokens(std::move(limits), std::move(form), v.size)->matcher();
  };
  const auto some = limited({.allowed = {TokenId(3), TokenId(7), TokenId(9)}, .banned = {{TokenId(9)}}});
  EXPECT_EQ(allowed_by(*some, v.size), (std::set<int32_t>{3, 7}));
  EXPECT_FALSE(some->accept(TokenId(8)));
  EXPECT_FALSE(some->accept(TokenId(9)));
  EXPECT_TRUE(some->accept(TokenId(7)));
  EXPECT_FALSE(some->is_over());

  const auto run =
      limited({.allowed = {}, .banned = {{TokenId(7), TokenId(8)}, {TokenId(8), TokenId(8), TokenId(9)}}});
  EXPECT_EQ(allowed_by(*run, v.size).size(), static_cast<size_t>(v.size)) << "a run alone is not forbidden";
  const auto ahead = run->clone();
  EXPECT_TRUE(ahead->accept(TokenId(7)));
  EXPECT_FALSE(allowed_by(*ahead, v.size).contains(8));
  EXPECT_FALSE(ahead->accept(TokenId(8)));
  EXPECT_FALSE(allowed_by(*ahead->clone(), v.size).contains(8));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(run->accept(TokenId(8)));
  EXPECT_FALSE(allowed_by(*run, v.size).contains(9));
  EXPECT_TRUE(allowed_by(*run, v.size).contains(8));

  const auto nothing = limited({.allowed = {TokenId(7)}, .banned = {{TokenId(7)}}});
  std::vector<uint32_t> bits(words_of_bits(v.size));
  EXPECT_FALSE(nothing->allow(bits).ok());
}

TEST(TokenLimits, HoldBesideAForm) {
  const Vocabulary v("llama3");
  const std::shared_ptr<const Grammar> form = make_choice_grammar(v.table(), {"yes", "no"}).value();
  const auto yes = with_bytes(v, "y"), no = with_bytes(v, "n");
  ASSERT_FALSE(yes.empty() || no.empty());
  std::vector<std::vector<TokenId>> banned;
  for (int32_t id = 0; id < v.tokenizer->vocab_size(); ++id)
    if (v.tokenizer->token_bytes(TokenId(id)).starts_with('n')) banned.push_back({TokenId(id)});
  const auto matcher = limit_tokens({.allowed = {}, .banned = banned}, form, v.size)->matcher();
  const auto allowed = allowed_by(*matcher, v.size);
  EXPECT_TRUE(allowed.contains(yes[0]));
  EXPECT_FALSE(allowed.contains(no[0]));
  EXPECT_FALSE(matcher->accept(TokenId(no[0])));
  ASSERT_TRUE(matcher->clone()->accept(TokenId(yes[0])));
  EXPECT_EQ(allowed_by(*matcher, v.size), allowed) << "as if there had been no copy";
}

TEST(TokenLimits, AWordHasItsRunAloneAndBehindASpace) {
  const Vocabulary v("llama3");
  for (const char* word : {"the", " the"}) {
    const auto runs = runs_of_word(word, *v.tokenizer).value();
    ASSERT_FALSE(runs.empty());
    EXPECT_EQ(runs[0], v.tokenizer->encode("the", SpecialTokens::kOmit).value());
    const auto behind = v.tokenizer->encode(" the", SpecialTokens::kOmit).value();
    EXPECT_EQ(runs.back(), behind);
  }
  EXPECT_TRUE(runs_of_word("  ", *v.tokenizer)->empty());
}

class ChoiceGrammars : public ::testing::TestWithParam<const char*> {};

// Walks all spellings: what is allowed is what begins the rest of a choice and can be gone on from.
TEST_P(ChoiceGrammars, AllowAllSpellingsAndNoOthers) {
  const Vocabulary v(GetParam());
  const auto table = v.table();
  const std::vector<std::string> choices{"yes", "yesterday", "no", "né 🙂 \xE2\x82\xAC", " no"};
  const auto made = make_choice_grammar(table, choices);
  if (!made.ok()) GTEST_SKIP() << GetParam() << ": " << made.status().message();
  size_t texts = 0;
  const auto walk = [&](auto&& self, TokenMatcher& matcher, const std::string& text, int depth) -> void {
    std::set<int32_t> expected;
    bool is_whole = false, is_longer = false;
    for (const std::string& choice : choices) {
      if (!choice.starts_with(text)) continue;
      is_whole |= choice == text;
      is_longer |= choice != text;
      for (int32_t id = 0; id < v.size; ++id) {
        const std::string& bytes = table->bytes_of(TokenId(id));
        if (!bytes.empty() && choice.substr(text.size()).starts_with(bytes)) expected.insert(id);
      }
    }
    if (is_whole) expected.insert({0, 3});
    const auto allowed = allowed_by(matcher, v.size);
    // Tokens that cannot be gone on from are left out; here single bytes spell everything.
    EXPECT_EQ(allowed, expected) << "behind '" << text << "'";
    EXPECT_EQ(matcher.is_over(), is_whole && !is_longer) << text;
    texts += is_whole;
    if (depth == 0 || matcher.is_over()) return;
    for (const int32_t id : allowed) {
      const auto behind = matcher.clone();
      ASSERT_TRUE(behind->accept(TokenId(id)));
      if (!table->is_end(TokenId(id))) self(self, *behind, text + table->bytes_of(TokenId(id)), depth - 1);
      EXPECT_FALSE(matcher.is_over()) << "a copy was told an end";
    }
    EXPECT_FALSE(matcher.accept(TokenId(v.size - 1)));
    EXPECT_FALSE(matcher.accept(TokenId(v.size)));
    EXPECT_FALSE(matcher.accept(TokenId(-1)));
    EXPECT_EQ(matcher.clone()->accept(TokenId(3)), is_whole);
  };
  const auto matcher = (*made)->matcher();
  walk(walk, *matcher, "", 5);
  EXPECT_GT(texts, 3u);
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, ChoiceGrammars,
                         ::testing::Values("gpt2", "llama3", "qwen", "sentencepiece", "metaspace"));

TEST(ChoiceGrammar, RefusesWhatCannotBeSpelledAndWhatIsTooMuch) {
  const Vocabulary v("gpt2");
  const auto error = [&](std::vector<std::string> choices) {
    return make_choice_grammar(v.table(), std::move(choices)).status().message();
  };
  EXPECT_NE(error({}).find("1 to 1024"), std::string::npos);
  EXPECT_NE(error({"a", ""}).find("empty"), std::string::npos);
  EXPECT_NE(error(std::vector<std::string>(1025, "a")).find("1025"), std::string::npos);
  EXPECT_NE(error({std::string(65537, 'a')}).find("65537 bytes"), std::string::npos);
  const auto made = make_choice_grammar(std::make_shared<TokenTable>(*v.tokenizer, v.ends, 0), {"a"});
  EXPECT_NE(made.status().message().find("cannot be spelled"), std::string::npos);
}

TEST(GrammarCompiler, SaysHowToGetTheLibrary) {
  const Vocabulary v("gpt2");
  const auto missing = make_grammar_compiler(
      *v.tokenizer, {.libraries = {"/nowhere/libllguidance.so"}, .ends = v.ends, .vocab_size = v.size});
  EXPECT_NE(missing.status().message().find("--grammar-library: /nowhere"), std::string::npos)
      << missing.status().message();
  const auto other =
      make_grammar_compiler(*v.tokenizer, {.libraries = {"libm.so.6"}, .ends = v.ends, .vocab_size = v.size});
  EXPECT_NE(other.status().message().find("no function llg_"), std::string::npos) << other.status().message();
  const auto none =
      make_grammar_compiler(*v.tokenizer, {.libraries = {}, .ends = v.ends, .vocab_size = v.size});
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE((*none)->compile({.kind = GrammarSpec::Kind::kChoice, .text = {}, .choices = {"a"}}).ok());
  if ((*none)->check_library().ok()) GTEST_SKIP() << "this machine has a libllguidance.so";
  const auto json = (*none)->compile({.kind = GrammarSpec::Kind::kJson, .text = "{}", .choices = {}});
  EXPECT_EQ(json.status().code(), StatusCode::kUnavailable) << "no fault of the request";
  EXPECT_NE(json.status().message().find("--grammar-library FILE"), std::string::npos);
}

// ---- with the library -----------------------------------------------------------------------------------

std::vector<std::string> test_libraries() {
  const char* const value = std::getenv("OUTRIDER_TEST_GRAMMAR_LIBRARY");
  std::vector<std::string> files;
  for (std::string_view rest = value ? value : ""; !rest.empty();) {
    const size_t end = std::min(rest.find(','), rest.size());
    files.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return files;
}

class Library : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const auto libraries = test_libraries();
    if (libraries.empty())
      GTEST_SKIP() << "OUTRIDER_TEST_GRAMMAR_LIBRARY is not set: llguidance/_lib.abi3.so or libllguidance.so";
    vocabulary_ = std::make_unique<Vocabulary>(GetParam());
    compiler_ = make_grammar_compiler(
                    *vocabulary_->tokenizer,
                    {.libraries = libraries, .ends = vocabulary_->ends, .vocab_size = vocabulary_->size})
                    .value();
  }
  std::shared_ptr<const Grammar> compile(GrammarSpec::Kind kind, const std::string& text) const {
    return compiler_->compile({.kind = kind, .text = text, .choices = {}}).value();
  }
  std::string error(GrammarSpec::Kind kind, const std::string& text) const {
    return compiler_->compile({.kind = kind, .text = text, .choices = {}}).status().message();
  }

  std::unique_ptr<Vocabulary> vocabulary_;
  std::unique_ptr<GrammarCompiler> compiler_;
};

// Both implementations of the same language give the same masks, everywhere.
TEST_P(Library, AllowsWhatChoicesDo) {
  const auto choices =
      make_choice_grammar(vocabulary_->table(), {"yes", "yesterday", "né 🙂", "no"}).value();
  const auto regex = compile(GrammarSpec::Kind::kRegex, "yes|yesterday|né 🙂|no");
  size_t places = 0;
  const auto walk = [&](auto&& self, TokenMatcher& a, TokenMatcher& b, int depth) -> void {
    ++places;
    ASSERT_EQ(a.is_over(), b.is_over());
    if (a.is_over()) return;
    const auto allowed = allowed_by(a, vocabulary_->size);
    ASSERT_EQ(allowed, allowed_by(b, vocabulary_->size));
    for (const int32_t id : allowed) {
      if (depth == 0) continue;
      const auto behind_a = a.clone(), behind_b = b.clone();
      ASSERT_TRUE(behind_a->accept(TokenId(id)));
      ASSERT_TRUE(behind_b->accept(TokenId(id)));
      self(self, *behind_a, *behind_b, depth - 1);
    }
    ASSERT_FALSE(b.accept(TokenId(vocabulary_->size - 1)));
    ASSERT_TRUE(b.error().ok()) << "a token that does not fit is no error";
  };
  walk(walk, *choices->matcher(), *regex->matcher(), 5);
  EXPECT_GT(places, 20u);
}

TEST_P(Library, WritesJsonOfASchemaInItsOrder) {
  const auto grammar = compile(
      GrammarSpec::Kind::kJson,
      R"({"type":"object","properties":{"b":{"type":"integer"},"a":{"enum":["x","é"]}},"required":["b","a"],"additionalProperties":false})");
  const auto first = grammar->matcher(), matcher = first->clone(), second = grammar->matcher();
  const auto table = vocabulary_->table();
  std::vector<TokenId> ids;  // without the space that some tokenizers put in front
  for (std::string_view rest = R"({"b": 12, "a": "é"})"; !rest.empty();) {
    size_t length = std::min(rest.size(), table->longest());
    while (table->with_bytes(rest.substr(0, length)).empty()) --length;
    ids.push_back(table->with_bytes(rest.substr(0, length)).front());
    rest.remove_prefix(length);
  }
  const auto before = allowed_by(*second, vocabulary_->size);
  for (const TokenId id : ids) {
    const auto allowed = allowed_by(*matcher, vocabulary_->size);
    EXPECT_TRUE(allowed.contains(id.value()));
    EXPECT_FALSE(allowed.contains(vocabulary_->size - 1)) << "padding";
    EXPECT_FALSE(allowed.contains(0)) << "an end in the middle";
    ASSERT_TRUE(matcher->accept(id));
  }
  EXPECT_TRUE(matcher->is_over());
  EXPECT_EQ(allowed_by(*second, vocabulary_->size), before) << "matchers of one grammar share nothing";
  EXPECT_EQ(allowed_by(*first, vocabulary_->size), before) << "a copy moved what it was made of";
  std::vector<TokenId> foreseen;
  std::vector<uint32_t> bits(words_of_bits(vocabulary_->size));
  ASSERT_TRUE(first->allow(bits).ok());
  first->foresee(bits, 8, foreseen);
  std::string text;
  for (const TokenId id : foreseen) {
    text += vocabulary_->tokenizer->token_bytes(id);
    EXPECT_TRUE(first->accept(id));
  }
  EXPECT_TRUE(std::string(R"({"b":)").starts_with(text.substr(0, 1)) || text.empty()) << text;
  std::printf("%s: foresees '%s'\n", GetParam(), text.c_str());
}

// A copy that met a limit of the library (items in a row of its parser) leaves the matcher that it was made
// of as it was, and says that it was no token that did not fit.
TEST_P(Library, ACopyThatMeetsALimitStopsAlone) {
  std::string large = "start: \"{\" large\nlarge: ";
  for (int i = 0; i < 2500; ++i) large += fmt::format("{}\"{:08x}\"", i == 0 ? "" : " | ", i * 2654435761U);
  const auto grammar = compile(GrammarSpec::Kind::kLark, large);
  const auto matcher = grammar->matcher();
  const auto before = allowed_by(*matcher, vocabulary_->size);
  const TokenId brace = vocabulary_->table()->with_bytes("{").front();
  ASSERT_TRUE(before.contains(brace.value()));
  const auto copy = matcher->clone();
  std::vector<uint32_t> bits(words_of_bits(vocabulary_->size));
  const bool goes_on = copy->accept(brace) && copy->allow(bits).ok();
  ASSERT_FALSE(goes_on) << "this grammar meets no limit any more; make it larger";
  EXPECT_EQ(copy->error().code(), StatusCode::kUnsupported);
  EXPECT_NE(copy->error().message().find("gave up"), std::string::npos) << copy->error().message();
  EXPECT_FALSE(copy->is_over());
  EXPECT_TRUE(matcher->error().ok());
  EXPECT_EQ(allowed_by(*matcher, vocabulary_->size), before);
}

// The library recurses along them.
TEST_P(Library, LongChainsOfRulesAndReferencesEndNoProcess) {
  std::string rules = "start: r0\n", schema = R"({"$ref":"#/$defs/d0","$defs":{)";
  constexpr int kLinks = 6000;
  for (int i = 0; i < kLinks; ++i) {
    rules += fmt::format("r{}: r{}\n", i, i + 1);
    schema += fmt::format(R"("d{}":{{"$ref":"#/$defs/d{}"}},)", i, i + 1);
  }
  rules += fmt::format("r{}: \"a\"\n", kLinks);
  schema += fmt::format(R"("d{}":{{"const":"a"}}}}}})", kLinks);
  for (const auto& [kind, text] :
       {std::pair(GrammarSpec::Kind::kLark, rules), std::pair(GrammarSpec::Kind::kJson, schema)}) {
    ASSERT_LT(text.size(), kMaxGrammarBytes);
    const auto made = compiler_->compile({.kind = kind, .text = text, .choices = {}});
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_EQ(allowed_by(*(*made)->matcher(), vocabulary_->size).empty(), false);
  }
}

TEST_P(Library, TellsItsOwnErrors) {
  EXPECT_NE(error(GrammarSpec::Kind::kJson, R"({"type": "nonsense"})"), "");
  EXPECT_NE(error(GrammarSpec::Kind::kJson, "{"), "");
  EXPECT_NE(error(GrammarSpec::Kind::kRegex, "(a"), "");
  EXPECT_NE(error(GrammarSpec::Kind::kLark, "start: nothing_here"), "");
  EXPECT_NE(error(GrammarSpec::Kind::kRegex, std::string(kMaxGrammarBytes + 1, 'a')).find("at most"),
            std::string::npos);
  EXPECT_NE(error(GrammarSpec::Kind::kRegex, std::string("a\0b", 3)).find("zero byte"), std::string::npos);
  // Much work is refused, or done when it is needed: this comes back soon.
  std::string hard = "(";
  for (int i = 0; i < 60; ++i) hard += "(a{1,99}b{1,99}){1,99}|";
  hard += "z){1,99}";
  const auto start = std::chrono::steady_clock::now();
  const std::string refusal = error(GrammarSpec::Kind::kRegex, hard);
  std::printf("%s: %.80s\n", GetParam(), refusal.c_str());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, Library, ::testing::Values("gpt2", "llama3", "qwen", "sentencepiece"));

// ---- sets of tokens -------------------------------------------------------------------------------------

TEST(TokenSets, HoldWhatTheirBitsSayInTheShortestForm) {
  for (const int32_t size : {1, 31, 32, 33, 302, 1024}) {
    for (const int share : {0, 1, 10, 50, 90, 99, 100}) {
      std::vector<uint32_t> bits(words_of_bits(size), 0);
      std::set<int32_t> in;
      for (int32_t id = 0; id < size; ++id)
        if (id * 7919 % 100 < share) {
          in.insert(id);
          bits[static_cast<size_t>(id / 32)] |= uint32_t{1} << id % 32;
        }
      if (size % 32 != 0) bits.back() |= ~((uint32_t{1} << size % 32) - 1);  // beyond the vocabulary
      const TokenSet set = token_set_of(bits, size);
      EXPECT_TRUE(check_token_set(set, size).ok());
      EXPECT_LE(set.bytes(), most_set_bytes(size));
      EXPECT_EQ(set.is_all(), static_cast<int32_t>(in.size()) == size);
      for (int32_t id = 0; id < size; ++id) EXPECT_EQ(set.contains(TokenId(id)), in.contains(id));
    }
  }
  EXPECT_FALSE(
      check_token_set({.form = TokenSet::Form::kOnly, .ids = {TokenId(3), TokenId(3)}, .bits = {}}, 9).ok());
  EXPECT_FALSE(check_token_set({.form = TokenSet::Form::kOnly, .ids = {TokenId(9)}, .bits = {}}, 9).ok());
  EXPECT_FALSE(check_token_set({.form = TokenSet::Form::kBits, .ids = {}, .bits = {1, 2}}, 9).ok());
  EXPECT_FALSE(check_token_set({.form = TokenSet::Form::kBits, .ids = {}, .bits = {}}, 9).ok());
}

}  // namespace
}  // namespace outrider
