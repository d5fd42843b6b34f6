// Parameters of one request: everything that a client, a line of --prompts or the flags under Requests may
// set. The program's own settings are elsewhere (start/settings.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/sampling_params.h"
#include "base/status.h"
#include "text/grammar/grammar_compiler.h"

namespace outrider {

using LogitBias = std::vector<std::pair<TokenId, float>>;

struct AskedGrammar {
  GrammarSpec spec;
  std::string field;  // the field that asked for it, for errors
};

// Values as they were given. Ranges are checked when a Request is built (request_builder.h).
struct RequestParams {
  std::optional<std::string> prompt;  // absent: the prompt comes from another source
  bool chat = false;                  // the prompt is a user's message for the chat template
  std::string system;                 // ... with this system message; empty: what the template writes itself
  int max_tokens = 128;
  float temperature = 0;
  int top_k = 0;
  float top_p = 1, min_p = 0;
  float repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  LogitBias logit_bias;
  std::vector<std::string> stop;
  std::vector<TokenId> stop_token_ids;
  bool ignore_eos = false;
  int min_tokens = 0;  // before this many tokens no end-of-sequence or stop token ends a text
  uint64_t seed = 0;
  int logprobs = -1;         // best tokens to report at each position; -1: no log-probabilities
  int prompt_logprobs = -1;  // the same for the prompt's tokens
  int priority = 0;          // lower values come first; with --scheduling-policy priority
  std::string rule = "auto";
  // The drafting of this request; without either, that of the run. 0: plain decoding.
  std::optional<int> num_speculative_tokens;
  std::string gamma_policy;
  std::optional<AskedGrammar> grammar;     // the requested form of the text
  std::vector<TokenId> allowed_token_ids;  // the only tokens that may be drawn; empty: all
  std::vector<std::string> bad_words;      // words kept out of the text, as far as tokens spell them
};

// `params.rule` is resolved. An error names --rule.
Result<SamplingParams> sampling_of(const RequestParams& params);
// `auto` is greedy at temperature 0 and invariant otherwise. An error names --rule.
Result<Rule> resolve_rule(const std::string& name, float temperature);
// "ID:V". An error names --logit-bias.
Result<std::pair<TokenId, float>> parse_logit_bias(const std::string& text);

}  // namespace outrider
