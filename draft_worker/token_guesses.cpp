#include "draft_worker/token_guesses.h"

#include <algorithm>

#include "transformer/sampling/gumbel.h"
#include "transformer/sampling/penalties.h"

namespace outrider {

void TokenGuesses::add(TokenId id) {
  if (count < kMaxGuesses && rank_of(id) == kMaxGuesses) ids[static_cast<size_t>(count++)] = id;
}

void TokenGuesses::remove(TokenId id) {
  const auto end = std::remove(ids.begin(), ids.begin() + count, id);
  count = static_cast<int32_t>(end - ids.begin());
}

int32_t TokenGuesses::rank_of(TokenId id) const {
  const auto at = std::find(ids.begin(), ids.begin() + count, id);
  return at == ids.begin() + count ? kMaxGuesses : static_cast<int32_t>(at - ids.begin());
}

TokenGuesses TokenGuesser::guess(std::span<float> row, const SamplingParams& params, Position position) {
  TokenGuesses guesses;
  const Chunks chunks{{0, static_cast<int64_t>(row.size())}};
  chunk_max_.resize(static_cast<size_t>(chunks.count()));
  scale_and_scan(row, chunks, 1.0f, chunk_max_);  // only for the maxima: the row is processed already
  if (effective_rule(params) == Rule::kInvariant) {
    best_with_noise(row, params, position, guesses);
    return guesses;
  }
  for (const RankedToken token : top_.local(row, chunks, chunk_max_, kMaxGuesses)) guesses.add(token.id());
  return guesses;
}

// The argmax, then that of what is left. The maxima of the chunks stay upper bounds, which is all the search
// needs. Fewer guesses than elsewhere: each is another pass over the noise.
void TokenGuesser::best_with_noise(std::span<float> row, const SamplingParams& params, Position position,
                                   TokenGuesses& guesses) {
  constexpr int32_t kNoisyGuesses = 4;
  const Chunks chunks{{0, static_cast<int64_t>(row.size())}};
  while (guesses.count < kNoisyGuesses) {
    const RankedToken best = gumbel_argmax(row, chunks, chunk_max_, params.seed, position);
    if (!best.is_finite()) return;
    guesses.add(best.id());
    row[static_cast<size_t>(best.id().value())] = kMinusInfinity;
  }
}

TokenId bonus_guess(const IntegerWeights& q, const SamplingParams& params, Position position, Round round) {
  return draw_token(q, draw_u64(params.seed, Purpose::kResidual, position, round));
}

}  // namespace outrider
