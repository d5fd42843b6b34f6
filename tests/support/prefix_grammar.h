// A grammar without a language: a hash of the text so far decides the allowed tokens. All kinds of masks
// occur (one token, few, many, all but some, all), and so do ends.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "base/hash.h"
#include "base/token_set.h"
#include "text/grammar/grammar.h"

namespace outrider::testing {

struct PrefixGrammarOptions {
  int32_t vocab_size = 0;
  uint64_t seed = 1;
  std::vector<TokenId> ends;
  int32_t over_after = 12;   // tokens; a text may be over then
  int32_t empty_after = -1;  // after this many tokens no token is allowed; -1: never
  int32_t error_after = -1;  // after this many tokens the matcher fails for good; -1: never
  int32_t limit_after = -1;  // after this many tokens it accepts no further one; -1: never
  bool is_even = false;      // about half of the tokens may follow anything
};

class PrefixGrammar final : public Grammar {
 public:
  explicit PrefixGrammar(PrefixGrammarOptions options) : options_(std::move(options)) {}
  std::unique_ptr<TokenMatcher> matcher() const override { return std::make_unique<Matcher>(options_); }
  int32_t vocab_size() const override { return options_.vocab_size; }

 private:
  class Matcher final : public TokenMatcher {
   public:
    explicit Matcher(const PrefixGrammarOptions& options) : options_(options) {}

    Status allow(std::span<uint32_t> bits) override {
      if (length() == options_.error_after) failed_ = true;
      RETURN_IF_ERROR(error());
      std::fill(bits.begin(), bits.end(), 0);
      for (int32_t id = 0; id < options_.vocab_size; ++id)
        if (may_follow(TokenId(id))) bits[static_cast<size_t>(id / 32)] |= uint32_t{1} << id % 32;
      return {};
    }
    bool accept(TokenId id) override {
      if (length() == options_.limit_after) failed_ = true;
      if (failed_ || is_over() || !may_follow(id)) return false;
      const bool ends = is_end(id);
      texts_.push_back({hash_combine(now().hash, static_cast<uint64_t>(id.value()) + 1), ends});
      return true;
    }
    Status error() const override { return failed_ ? unavailable("this matcher fails here") : Status(); }
    std::unique_ptr<TokenMatcher> clone() const override { return std::make_unique<Matcher>(*this); }
    bool is_over() const override {
      return now().ended || (length() >= options_.over_after && mix(3) % 6 == 0);
    }
    // Mostly wrong.
    void foresee(std::span<const uint32_t>, int32_t most, std::vector<TokenId>& ids) const override {
      if (mix(4) % 3 != 0) return;
      const int32_t count = static_cast<int32_t>(mix(5) % 4);
      Matcher ahead = *this;
      for (int32_t added = 0; added < std::min(most, count); ++added) {
        const auto first = static_cast<int32_t>(ahead.mix(6) % static_cast<uint64_t>(options_.vocab_size));
        int32_t id = first;
        while (id < options_.vocab_size && !ahead.may_follow(TokenId(id))) ++id;
        if (id == options_.vocab_size || !ahead.accept(TokenId(id))) break;
        ids.emplace_back(id);
      }
    }

   private:
    struct Text {
      uint64_t hash = 0;
      bool ended = false;
    };
    Text now() const { return texts_.empty() ? Text{options_.seed, false} : texts_.back(); }
    int32_t length() const { return static_cast<int32_t>(texts_.size()); }
    uint64_t mix(uint64_t with) const { return hash_combine(now().hash, with) >> 20; }
    bool is_end(TokenId id) const {
      return std::find(options_.ends.begin(), options_.ends.end(), id) != options_.ends.end();
    }
    bool may_follow(TokenId id) const {
      if (length() == options_.empty_after) return false;
      const auto v = static_cast<uint64_t>(id.value());
      if (is_end(id)) return mix(1) % 5 == 0;
      const uint64_t own = mix(1000 + v);
      if (options_.is_even) return own % 2 == 0;
      switch (mix(2) % 8) {
        case 0:  // one token, which may be rare
          return v == mix(7) % static_cast<uint64_t>(options_.vocab_size) || (v == 0 && mix(1) % 5 != 0);
        case 1:
          return true;
        case 2:
          return own % 50 != 0;
        case 3:
          return own % 40 == 0 || v < 3;
        default:
          return own % 3 != 0;
      }
    }

    const PrefixGrammarOptions options_;
    std::vector<Text> texts_;
    bool failed_ = false;
  };

  const PrefixGrammarOptions options_;
};

inline std::shared_ptr<const Grammar> make_prefix_grammar(PrefixGrammarOptions options) {
  return std::make_shared<PrefixGrammar>(std::move(options));
}

}  // namespace outrider::testing
