#include "text/grammar/token_limits.h"

#include <algorithm>
#include <utility>

#include "base/token_set.h"

namespace outrider {
namespace {

struct Limits {
  TokenLimits limits;
  std::vector<uint32_t> base;  // bits of what is allowed wherever nothing has been written
  std::shared_ptr<const Grammar> form;
  int32_t vocab_size = 0;
  size_t longest = 0;  // of the runs, in tokens
};

class LimitsMatcher final : public TokenMatcher {
 public:
  explicit LimitsMatcher(std::shared_ptr<const Limits> limits)
      : LimitsMatcher(limits, limits->form ? limits->form->matcher() : nullptr, {}) {}

  Status allow(std::span<uint32_t> bits) override {
    if (form_) {
      RETURN_IF_ERROR(form_->allow(bits));
      for (size_t i = 0; i < bits.size(); ++i) bits[i] &= limits_->base[i];
    } else {
      std::copy(limits_->base.begin(), limits_->base.end(), bits.begin());
    }
    for (const auto& run : limits_->limits.banned)
      if (completes(run)) clear(bits, run.back());
    if (std::any_of(bits.begin(), bits.end(), [](uint32_t word) { return word != 0; })) return {};
    return invalid_argument("\"allowed_token_ids\" and \"bad_words\" leave no token that may come next");
  }

  bool accept(TokenId id) override {
    const bool is_known = id.value() >= 0 && id.value() < limits_->vocab_size;
    if (!is_known || (limits_->base[static_cast<size_t>(id.value() / 32)] >> id.value() % 32 & 1) == 0)
      return false;
    for (const auto& run : limits_->limits.banned)
      if (run.back() == id && completes(run)) return false;
    if (form_ && !form_->accept(id)) return false;
    if (limits_->longest <= 1) return true;
    if (written_.size() + 1 == limits_->longest) written_.erase(written_.begin());
    written_.push_back(id);
    return true;
  }

  Status error() const override { return form_ ? form_->error() : Status(); }

  std::unique_ptr<TokenMatcher> clone() const override {
    return std::unique_ptr<TokenMatcher>(
        new LimitsMatcher(limits_, form_ ? form_->clone() : nullptr, written_));
  }

  bool is_over() const override { return form_ && form_->is_over(); }

 private:
  LimitsMatcher(std::shared_ptr<const Limits> limits, std::unique_ptr<TokenMatcher> form,
                std::vector<TokenId> written)
      : limits_(std::move(limits)), form_(std::move(form)), written_(std::move(written)) {}

  // Whether the next token could be its last one.
  bool completes(const std::vector<TokenId>& run) const {
    const size_t before = run.size() - 1;
    return written_.size() >= before &&
           std::equal(run.begin(), run.end() - 1, written_.end() - static_cast<ptrdiff_t>(before));
  }
  static void clear(std::span<uint32_t> bits, TokenId id) {
    bits[static_cast<size_t>(id.value() / 32)] &= ~(uint32_t{1} << id.value() % 32);
  }

  const std::shared_ptr<const Limits> limits_;
  const std::unique_ptr<TokenMatcher> form_;
  std::vector<TokenId> written_;  // the last tokens, one fewer than the longest banned run
};

class LimitsGrammar final : public Grammar {
 public:
  explicit LimitsGrammar(Limits limits) : limits_(std::make_shared<const Limits>(std::move(limits))) {}
  std::unique_ptr<TokenMatcher> matcher() const override { return std::make_unique<LimitsMatcher>(limits_); }
  int32_t vocab_size() const override { return limits_->vocab_size; }

 private:
  const std::shared_ptr<const Limits> limits_;
};

}  // namespace

Result<std::vector<std::vector<TokenId>>> runs_of_word(const std::string& word, const Tokenizer& tokenizer) {
  const size_t begin = word.find_first_not_of(' ');
  std::vector<std::vector<TokenId>> runs;
  if (begin == std::string::npos) return runs;
  for (const char* before : {"", " "}) {
    ASSIGN_OR_RETURN(auto run, tokenizer.encode(before + word.substr(begin), SpecialTokens::kOmit));
    if (!run.empty() && (runs.empty() || run != runs[0])) runs.push_back(std::move(run));
  }
  return runs;
}

std::shared_ptr<const Grammar> limit_tokens(TokenLimits limits, std::shared_ptr<const Grammar> form,
                                            int32_t vocab_size) {
  if (form) vocab_size = form->vocab_size();
  Limits made{.limits = std::move(limits), .base = {}, .form = std::move(form), .vocab_size = vocab_size};
  for (const auto& run : made.limits.banned) made.longest = std::max(made.longest, run.size());
  made.base.assign(words_of_bits(vocab_size), made.limits.allowed.empty() ? ~uint32_t{0} : 0);
  for (const TokenId id : made.limits.allowed)
    if (id.value() < vocab_size)
      made.base[static_cast<size_t>(id.value() / 32)] |= uint32_t{1} << id.value() % 32;
  return std::make_shared<LimitsGrammar>(std::move(made));
}

}  // namespace outrider
