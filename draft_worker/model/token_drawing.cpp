#include "draft_worker/model/token_drawing.h"

#include <algorithm>
#include <cmath>

#include "comm/chances.h"
#include "heads/stop_rule.h"

namespace outrider {

TokenDrawing::TokenDrawing(DraftingState& state)
    : state_(state), single_(make_single_collectives()), sampler_(*single_) {
  if (state_.options.head) head_logits_.resize(static_cast<size_t>(state_.vocab_size));
}

Status TokenDrawing::run(std::span<const BatchSlice> slices, RankedPass* ranked) {
  ranked_ = ranked && ranked->is_taken() ? ranked : nullptr;
  if (ranked_) return ranked->run(slices);
  ASSIGN_OR_RETURN(logits_, state_.model.forward(slices));
  return {};
}

// The logits that tokens are drawn from: the model's own, or those of its quantised hidden state, which is
// kept in hidden_. A hidden state that is not finite gives logits that are not finite.
std::span<float> TokenDrawing::logits_row(const StrandKey& key, int64_t row) {
  if (key.q_kind != QKind::kHidden) return logits_row(row);
  const DraftHead& head = *state_.options.head;
  if (head.quantize(logits_.hidden.row(row), key.code_bits, hidden_))
    head.logits({&hidden_, 1}, {0, state_.vocab_size}, {head_logits_.data(), {1, state_.vocab_size}},
                head_scratch_);
  else
    std::fill(head_logits_.begin(), head_logits_.end(), NAN);
  return head_logits_;
}

HiddenRow& TokenDrawing::hidden() {
  hidden_.max = sampler_.max();
  return hidden_;
}

Status TokenDrawing::not_finite(const Strand& strand) {
  return malformed(fmt::format("the draft model gave non-finite logits at position {}",
                               strand.base.value() + strand.length()));
}

Status TokenDrawing::draw(DraftedSequence& s, Strand& strand, int64_t row) {
  const bool sends_q = strand.key.q_kind != QKind::kNone;
  const auto logits = logits_row(strand.key, row);
  const auto token = sampler_.sample(logits, next_step(s, strand), sends_q ? &q_ : nullptr);
  if (!token) return not_finite(strand);
  DraftConfidence confidence;
  if (strand.stop.kind == StopKind::kChances)
    confidence.margin = guesser_.margin(logits, s.sampling, strand.base + strand.length());
  else if (strand.stop.kind != StopKind::kNone)
    confidence = confidence_of(logits, *token);
  if (!add(s, strand, *token, confidence) || !sends_q) return {};
  if (strand.key.q_kind == QKind::kHidden)
    std::swap(strand.hidden.emplace_back(state_.storage.take_hidden_row()), hidden());
  else
    std::swap(strand.q.emplace_back(state_.storage.take_row()), q_);
  return {};
}

bool TokenDrawing::add(DraftedSequence& s, Strand& strand, TokenId token, const DraftConfidence& confidence) {
  const auto place = static_cast<size_t>(strand.length());
  const double survival = strand.survival * chance_of(strand.stop, place, confidence.margin);
  if (stops_before(strand.stop, place, survival) ||
      (place > 0 && stops_before(strand.stop, confidence.entropy))) {
    // A draw is a function of its key, so dropping it equals not drawing it. The last token of a draft is
    // never in the cache.
    strand.stopped = true;
    if (place > 0) state_.roll_back(s, s.window.cached() - 1);
    return false;
  }
  strand.tokens.push_back(token);
  // A stopping time: it depends only on sent tokens.
  strand.eos = state_.is_end(token);
  strand.stopped =
      stops_after(strand.stop, confidence.probability) || stops_after(strand.stop, place, survival);
  if (strand.stop.kind != StopKind::kChances) return true;
  strand.survival = survival;
  strand.margins.push_back(static_cast<float>(confidence.margin));
  return true;
}

DraftStep TokenDrawing::step_of_last(const DraftedSequence& s) {
  return {.sampling = &s.sampling,
          .counts = &s.counts,
          .drafted = {},
          .position = s.job->propose.base - 1,
          .round = s.job->propose.round,
          .row_bytes = 0};
}

TokenId TokenDrawing::guess_of_last(const DraftedSequence& s, int64_t row) {
  if (!ranked_) return sampler_.sample(logits_row(row), step_of_last(s), nullptr).value_or(TokenId(-1));
  const auto best = ranked_->best(row);
  return best.empty() ? TokenId(-1) : best.front().id();
}

std::optional<TokenGuesses> TokenDrawing::guesses(const DraftedSequence& s, const StrandKey& key,
                                                  const DraftStep& step, int64_t row, bool draws_bonus) {
  const auto logits = logits_row(key, row);
  const bool finite = draws_bonus ? sampler_.sample(logits, step, &q_).has_value()
                                  : sampler_.process(logits, step).has_value();
  if (!finite) return std::nullopt;
  TokenGuesses guesses;
  if (draws_bonus) guesses.add(bonus_guess(q_, s.sampling, step.position, step.round));
  const TokenGuesses likely = guesser_.guess(logits, s.sampling, step.position);
  for (const TokenId id : likely.view()) guesses.add(id);
  return guesses;
}

std::optional<std::span<const RankedToken>> TokenDrawing::best(const DraftedSequence& s,
                                                               const DraftStep& step, int64_t row,
                                                               size_t count) {
  if (ranked_) {
    const auto ranked = ranked_->best(row);
    return ranked.empty() ? std::nullopt : std::optional(ranked.first(std::min(ranked.size(), count)));
  }
  const auto logits = logits_row(row);
  if (!sampler_.process(logits, step)) return std::nullopt;
  return guesser_.best(logits, s.sampling, step.position, count);
}

QRow* TokenDrawing::weigh(const StrandKey& key, const DraftStep& step, int64_t row) {
  return sampler_.weigh(logits_row(key, row), step, q_) ? &q_ : nullptr;
}

}  // namespace outrider
