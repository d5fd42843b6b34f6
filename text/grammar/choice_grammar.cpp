#include "text/grammar/choice_grammar.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/printable.h"
#include "base/token_set.h"

namespace outrider {
namespace {

struct Choice {
  std::string text;
  std::vector<bool> leads_on;  // [i]: from byte i on tokens spell the rest
};

struct Choices {
  std::shared_ptr<const TokenTable> tokens;
  std::vector<Choice> all;
};

// From the end to the beginning.
Choice spelled(std::string text, const TokenTable& tokens) {
  Choice choice{.text = std::move(text), .leads_on = {}};
  const std::string_view whole = choice.text;
  choice.leads_on.assign(whole.size() + 1, false);
  choice.leads_on[whole.size()] = true;
  for (size_t at = whole.size(); at-- > 0;)
    for (size_t n = 1; n <= std::min(tokens.longest(), whole.size() - at) && !choice.leads_on[at]; ++n)
      choice.leads_on[at] = choice.leads_on[at + n] && !tokens.with_bytes(whole.substr(at, n)).empty();
  return choice;
}

// Where each choice that the text so far is a beginning of goes on, and whether it has ended.
class ChoiceMatcher final : public TokenMatcher {
 public:
  explicit ChoiceMatcher(std::shared_ptr<const Choices> choices) : choices_(std::move(choices)) {}

  Status allow(std::span<uint32_t> bits) override {
    std::fill(bits.begin(), bits.end(), 0);
    const auto set = [&](TokenId id) {
      bits[static_cast<size_t>(id.value() / 32)] |= uint32_t{1} << id.value() % 32;
    };
    for (const Choice& choice : choices_->all) {
      if (!is_live(choice)) continue;
      const std::string_view rest = std::string_view(choice.text).substr(text_.size());
      if (rest.empty())
        for (const TokenId id : choices_->tokens->ends()) set(id);
      for (size_t n = 1; n <= std::min(choices_->tokens->longest(), rest.size()); ++n)
        if (choice.leads_on[text_.size() + n])
          for (const TokenId id : choices_->tokens->with_bytes(rest.substr(0, n))) set(id);
    }
    return {};
  }

  bool accept(TokenId id) override {
    if (id.value() < 0 || id.value() >= choices_->tokens->vocab_size() || ended_) return false;
    if (choices_->tokens->is_end(id)) {
      const auto is_whole = [&](const Choice& choice) { return choice.text == text_; };
      if (std::none_of(choices_->all.begin(), choices_->all.end(), is_whole)) return false;
      return ended_ = true;
    }
    const std::string& bytes = choices_->tokens->bytes_of(id);
    const size_t length = text_.size();
    text_ += bytes;
    const auto goes_on = [&](const Choice& choice) {
      return is_live(choice) && choice.leads_on[text_.size()];
    };
    if (bytes.empty() || std::none_of(choices_->all.begin(), choices_->all.end(), goes_on)) {
      text_.resize(length);
      return false;
    }
    return true;
  }

  std::unique_ptr<TokenMatcher> clone() const override { return std::make_unique<ChoiceMatcher>(*this); }

  bool is_over() const override {
    if (ended_) return true;
    bool is_whole = false;
    for (const Choice& choice : choices_->all) {
      if (!is_live(choice)) continue;
      if (choice.text.size() > text_.size()) return false;
      is_whole = true;
    }
    return is_whole;
  }

 private:
  bool is_live(const Choice& choice) const { return choice.text.starts_with(text_); }

  const std::shared_ptr<const Choices> choices_;
  std::string text_;
  bool ended_ = false;
};

class ChoiceGrammar final : public Grammar {
 public:
  explicit ChoiceGrammar(Choices choices) : choices_(std::make_shared<Choices>(std::move(choices))) {}
  std::unique_ptr<TokenMatcher> matcher() const override { return std::make_unique<ChoiceMatcher>(choices_); }
  int32_t vocab_size() const override { return choices_->tokens->vocab_size(); }

 private:
  const std::shared_ptr<const Choices> choices_;
};

}  // namespace

Result<std::shared_ptr<const Grammar>> make_choice_grammar(std::shared_ptr<const TokenTable> tokens,
                                                           std::vector<std::string> choices) {
  if (choices.empty() || choices.size() > kMaxChoices)
    return invalid_argument(fmt::format("{} choices: must be 1 to {}", choices.size(), kMaxChoices));
  size_t bytes = 0;
  for (const std::string& choice : choices) bytes += choice.size();
  if (bytes > kMaxChoiceBytes)
    return invalid_argument(
        fmt::format("the choices have {} bytes together: at most {}", bytes, kMaxChoiceBytes));
  Choices all{.tokens = tokens, .all = {}};
  for (std::string& text : choices) {
    if (text.empty()) return invalid_argument("a choice is an empty text");
    Choice choice = spelled(std::move(text), *tokens);
    if (!choice.leads_on.front())
      return invalid_argument(fmt::format("choice '{}' cannot be spelled with the tokens of this vocabulary",
                                          printable(choice.text, 60)));
    all.all.push_back(std::move(choice));
  }
  return std::shared_ptr<const Grammar>(std::make_shared<ChoiceGrammar>(std::move(all)));
}

}  // namespace outrider
