#include "heads/token_guesses.h"

#include <algorithm>

#include "comm/messages/draft_forms.h"
#include "kernels/sampling/gumbel.h"
#include "kernels/sampling/penalties.h"

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
  const bool noisy = effective_rule(params) == Rule::kInvariant;
  const size_t count = noisy ? kNoisyGuesses : size_t{kMaxGuesses};
  for (const RankedToken token : best(row, params, position, count)) guesses.add(token.id());
  return guesses;
}

std::span<const RankedToken> TokenGuesser::best(std::span<float> row, const SamplingParams& params,
                                                Position position, size_t count) {
  CHECK(count > 0 && count <= kMaxGuesses, "{} guesses", count);
  const Chunks chunks{{0, static_cast<int64_t>(row.size())}};
  chunk_max_.resize(static_cast<size_t>(chunks.count()));
  scale_and_scan(row, chunks, 1.0f, chunk_max_);  // only for the maxima: the row is processed already
  if (effective_rule(params) == Rule::kInvariant) return best_with_noise(row, params, position, count);
  return top_.local(row, chunks, chunk_max_, count);
}

double TokenGuesser::margin(std::span<float> row, const SamplingParams& params, Position position) {
  const auto two = best(row, params, position, 2);
  const auto most = static_cast<double>(kMaxMargin);
  if (two.size() < 2) return most;
  return std::min(most, static_cast<double>(two[0].value()) - static_cast<double>(two[1].value()));
}

// The best few scores in one pass over the noise, skipping what cannot be among them (see gumbel_argmax).
std::span<const RankedToken> TokenGuesser::best_with_noise(std::span<const float> row,
                                                           const SamplingParams& params, Position position,
                                                           size_t count) {
  const Chunks chunks{{0, static_cast<int64_t>(row.size())}};
  best_ = {};
  const auto best = std::span(best_).first(count);  // descending; none: packed 0
  const auto visit = [&](int64_t chunk) {
    const auto missing = [&](float logit) {  // the word that a token of this logit must draw to be among them
      return best.back().packed == 0 ? 0 : least_word_for_noise(noise_needed(best.back().value(), logit));
    };
    const float highest = chunk_max_[static_cast<size_t>(chunk)];
    if (highest == kMinusInfinity || missing(highest) > UINT32_MAX) return;
    const auto least = static_cast<uint32_t>(missing(highest));
    if (!fill_noise_words(params.seed, position, chunk, least, words_)) return;
    for (int64_t v = chunks.local(chunk).begin; v < chunks.local(chunk).end; ++v) {
      const float logit = row[static_cast<size_t>(v)];
      const uint32_t word = words_.of(v);
      if (word < least || logit == kMinusInfinity || word < missing(logit)) continue;
      const RankedToken token = RankedToken::of(gumbel_score(logit, word), v);
      if (token <= best.back()) continue;
      best.back() = token;
      for (size_t i = best.size() - 1; i > 0 && best[i] > best[i - 1]; --i) std::swap(best[i], best[i - 1]);
    }
  };
  // A good bound first.
  const auto first = std::max_element(chunk_max_.begin(), chunk_max_.end()) - chunk_max_.begin();
  visit(first);
  for (int64_t chunk = 0; chunk < chunks.count(); ++chunk)
    if (chunk != first) visit(chunk);
  const auto end =
      std::find_if(best.begin(), best.end(), [](RankedToken token) { return token.packed == 0; });
  return best.first(static_cast<size_t>(end - best.begin()));
}

TokenId bonus_guess(const QRow& q, const SamplingParams& params, Position position, Round round) {
  return draw_token(q, draw_u64(params.seed, Purpose::kResidual, position, round));
}

}  // namespace outrider
