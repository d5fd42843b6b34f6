// A tokenizer put together from the stages of its file: added tokens, normaliser, pre-tokenizer, model,
// decoder.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pretokenizer.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/vocabulary.h"
#include "text/tokenizer/word_model.h"

namespace outrider {

struct TokenizerParts {
  Vocabulary vocabulary;
  std::vector<AddedToken> added_tokens;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<WordModel> model;
  Decoder decoder;
  std::vector<TokenId> prefix, suffix;  // what SpecialTokens::kAdd puts around a text
};

// An error: the decoder makes a token too long (Decoder::bytes).
Result<std::unique_ptr<Tokenizer>> make_pipeline_tokenizer(TokenizerParts parts);

}  // namespace outrider
