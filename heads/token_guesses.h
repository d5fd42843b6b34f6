// The likeliest tokens of a position, best first, as a draft model sees them: what the target may emit there.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "base/sampling_params.h"
#include "kernels/sampling/draft_sampler.h"
#include "kernels/sampling/top_tokens.h"

namespace outrider {

constexpr int32_t kMaxGuesses = 8;  // of one next token

struct TokenGuesses {
  std::array<TokenId, kMaxGuesses> ids{};
  int32_t count = 0;

  std::span<const TokenId> view() const { return {ids.data(), static_cast<size_t>(count)}; }
  void add(TokenId id);  // unless it is there, or there is no room
  // A rejected token cannot be the recovery token.
  void remove(TokenId id);
  int32_t rank_of(TokenId id) const;  // kMaxGuesses: not among the guesses
};

class TokenGuesser {
 public:
  // `row` as DraftSampler::sample left it. Under the invariant rule by logit plus the
  // noise that the target adds too; else by logit.
  TokenGuesses guess(std::span<float> row, const SamplingParams& params, Position position);
  // The `count` best tokens with their scores, kMaxGuesses at most; fewer if the row has fewer. Valid until
  // the next call.
  std::span<const RankedToken> best(std::span<float> row, const SamplingParams& params, Position position,
                                    size_t count);
  // The best token's lead over the second; kMostMargin at most, and where there is only one token.
  double margin(std::span<float> row, const SamplingParams& params, Position position);

 private:
  static constexpr size_t kNoisyGuesses = 4;  // every further one loosens the bound of the search

  std::span<const RankedToken> best_with_noise(std::span<const float> row, const SamplingParams& params,
                                               Position position, size_t count);

  std::vector<float> chunk_max_;
  std::array<RankedToken, kMaxGuesses> best_{};
  TopTokens top_;
  NoiseWords words_;
};

// Under p/q rules the target draws a bonus token with a uniform that the drafter can compute as well: its own
// distribution at that uniform is a good guess. Only a guess: what is drafted does not depend on it.
TokenId bonus_guess(const QRow& q, const SamplingParams& params, Position position, Round round);

}  // namespace outrider
