// What one request asks for: all that a client, a line of --prompts or the flags under Requests may set. The
// program's own settings are elsewhere (start/settings.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/sampling_params.h"
#include "base/status.h"
#include "transformer/grammar/grammar_compiler.h"

namespace outrider {

using LogitBias = std::vector<std::pair<TokenId, float>>;

struct AskedGrammar {
  GrammarSpec spec;
  std::string field;  // that asked for it, for errors
};

// As it was asked for. Ranges are checked when a Request is built of it (request_builder.h).
struct RequestParams {
  std::optional<std::string> prompt;  // absent: the prompt comes from elsewhere
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
  int min_tokens = 0;  // before so many no text ends at an end-of-sequence token or a stop token
  uint64_t seed = 0;
  int logprobs = -1;         // best tokens to tell of each position; -1: no log-probabilities
  int prompt_logprobs = -1;  // the same of the prompt's tokens
  int priority = 0;          // the lower, the earlier; with --scheduling-policy priority
  std::string rule = "auto";
  // How this request drafts; neither: as the run does. 0: plain decoding.
  std::optional<int> num_speculative_tokens;
  std::string gamma_policy;
  std::optional<AskedGrammar> grammar;     // what the text must look like
  std::vector<TokenId> allowed_token_ids;  // no other token is drawn; empty: all may be
  std::vector<std::string> bad_words;      // that the text does not contain, as far as tokens spell them
};

// The rule is resolved. An error names --rule.
Result<SamplingParams> sampling_of(const RequestParams& params);
// `auto` is greedy at temperature 0 and invariant otherwise. An error names --rule.
Result<Rule> resolve_rule(const std::string& name, float temperature);
// "ID:V". An error names --logit-bias.
Result<std::pair<TokenId, float>> parse_logit_bias(const std::string& text);

}  // namespace outrider
