// Parts of replies in the formats of OpenAI's and vLLM's clients.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "comm/messages/verifying.h"
#include "coordinator/metrics/metrics.h"
#include "text/tokenizer/tokenizer.h"

namespace outrider {

// Names of tokens in log-probabilities.
enum class TokenNames {
  kText,  // "bytes:\\xNN" for a token that is not whole characters
  kIds,   // "token_id:42", unique for each token
};

// {tokens, token_logprobs, top_logprobs, text_offset}. `offset`: characters of the text so far; advanced by
// these tokens.
nlohmann::json completion_logprobs(std::span<const PositionLogprobs> positions, const Tokenizer& tokenizer,
                                   int64_t& offset, TokenNames names = TokenNames::kText);
// Log-probabilities of an echoed prompt: its first token, which has none, and the following tokens, with the
// `top` best alternatives each.
nlohmann::json echo_logprobs(TokenId first, std::span<const PositionLogprobs> positions, int top,
                             const Tokenizer& tokenizer, int64_t& offset,
                             TokenNames names = TokenNames::kText);
// vLLM's "prompt_logprobs": [null, {id: {logprob, rank, decoded_token}}, ...]. A rank is null for a token
// outside the best ones.
nlohmann::json prompt_logprobs_json(std::span<const PositionLogprobs> positions, int top,
                                    const Tokenizer& tokenizer);
nlohmann::json ids_json(std::span<const TokenId> ids);
// {content: [{token, logprob, bytes, top_logprobs}]}.
nlohmann::json chat_logprobs(std::span<const PositionLogprobs> positions, const Tokenizer& tokenizer,
                             TokenNames names = TokenNames::kText);

// A token's text; a special token has none, so it is shown by its name.
std::string shown_bytes(TokenId id, const Tokenizer& tokenizer);

nlohmann::json usage_json(int64_t prompt_tokens, int64_t completion_tokens);
// {speculative_decoding: {...}} with vLLM's names.
nlohmann::json speculation_json(const RoundSums& rounds);
// The same, with an entry for each round with a draft.
nlohmann::json detailed_speculation_json(const RequestMetrics& metrics);

}  // namespace outrider
