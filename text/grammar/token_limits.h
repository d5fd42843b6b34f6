// Tokens that a request allows or forbids, whatever its text looks like: a grammar without a form, alone or
// over another one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/grammar/grammar.h"
#include "text/tokenizer/tokenizer.h"

namespace outrider {

struct TokenLimits {
  std::vector<TokenId> allowed;              // empty: all
  std::vector<std::vector<TokenId>> banned;  // no run in this list may be completed
};

// The runs of tokens that spell a word, alone and behind a space. (vLLM takes the second only where both have
// as many tokens, so a word that is one token behind a space stays allowed there.) An error: the tokenizer
// refuses the word.
Result<std::vector<std::vector<TokenId>>> runs_of_word(const std::string& word, const Tokenizer& tokenizer);

// `form` may be null.
std::shared_ptr<const Grammar> limit_tokens(TokenLimits limits, std::shared_ptr<const Grammar> form,
                                            int32_t vocab_size);

}  // namespace outrider
