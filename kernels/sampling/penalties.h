// The first step of logits processing: repetition, presence and frequency penalties, then logit bias. In
// place, on one rank's slice of a row.
#pragma once

#include <span>

#include "base/sampling_params.h"
#include "base/shard.h"
#include "base/token_set.h"
#include "kernels/sampling/token_counts.h"
#include "kernels/sampling/token_math.h"

namespace outrider {

inline bool needs_counts(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.presence_penalty != 0 || params.frequency_penalty != 0;
}

inline PenaltyFactors penalty_factors(const SamplingParams& params) {
  return {params.repetition_penalty, params.presence_penalty, params.frequency_penalty};
}

// The rule these parameters really use: a temperature near 0 is greedy, whatever the rule's name.
inline Rule effective_rule(const SamplingParams& params) {
  return params.temperature < kGreedyTemperature ? Rule::kGreedy : params.rule;
}

// fl32(1 / temperature), the factor of every processed logit; 1 for greedy requests.
inline float inverse_temperature(const SamplingParams& params) {
  return effective_rule(params) == Rule::kGreedy ? 1.0f : 1.0f / params.temperature;
}

// Top-k, top-p or min-p is on. Greedy requests ignore them: the best token always survives.
inline bool has_filters(const SamplingParams& params) {
  return effective_rule(params) != Rule::kGreedy &&
         (params.top_k > 0 || params.top_p < 1 || params.min_p > 0);
}

// Penalties count the committed tokens and, as output, those drafted before this row. `counts` may be null
// when needs_counts() is false. `logits` covers the ids of `range`.
void apply_penalties(std::span<float> logits, IndexRange range, const SamplingParams& params,
                     const TokenCounts* counts, std::span<const TokenId> drafted);
// min_tokens: at a position before `ends_from` none of `ends` may be drawn. After the penalties, which a bias
// of an end cannot outweigh then.
void forbid_ends(std::span<float> logits, IndexRange range, const SamplingParams& params, Position position);
// None of the other tokens may be drawn, whatever their bias. `allowed` passed check_token_set() for the
// whole vocabulary.
void forbid_others(std::span<float> logits, IndexRange range, const TokenSet& allowed);

}  // namespace outrider
