#include "draft_worker/model/staged_drafts.h"

#include <utility>

#include "draft_worker/text/text_drafter.h"

namespace outrider {

bool StageGain::next() {
  const Kind &without = kinds_[0], &with = kinds_[1];
  if (with.passes < kFirst) return true;
  if (without.passes < kFirst) return false;
  const bool better = with.rate() > without.rate();
  if (++since_trial_ < kTrialEvery) return better;
  since_trial_ = 0;
  return !better;
}

void StageGain::took(bool with_guesses, int64_t tokens, int64_t ns) {
  Kind& kind = kinds_[with_guesses];
  ++kind.passes;
  kind.tokens += static_cast<double>(tokens) - kForget * kind.tokens;
  kind.ns += static_cast<double>(ns) - kForget * kind.ns;
}

StagedDrafts::StagedDrafts(std::shared_ptr<TextGuesser> guesser) : guesser_(std::move(guesser)) {}

StagedDrafts::~StagedDrafts() = default;

void StagedDrafts::open(SequenceId sequence, std::span<const TokenId> text, int32_t prompt_length,
                        bool alone) {
  guesser_->open(sequence, text, prompt_length, alone);
}

void StagedDrafts::extend(SequenceId sequence, std::span<const TokenId> text) {
  guesser_->extend(sequence, text);
}

void StagedDrafts::close(SequenceId sequence) { guesser_->close(sequence); }

void StagedDrafts::begin_pass() {
  reads_ = gain_.next();
  offered_ = false;
}

void StagedDrafts::guess(SequenceId sequence, std::span<const TokenId> committed,
                         std::span<const TokenId> drafted, int32_t most, std::vector<TokenId>& out) {
  text_.assign(committed.begin(), committed.end());
  text_.insert(text_.end(), drafted.begin(), drafted.end());
  out.clear();
  guesser_->guess(sequence, text_, most, out);
  offered_ |= !out.empty();
  if (!reads_) out.clear();
}

void StagedDrafts::verified(SequenceId sequence, int32_t right) { guesser_->verified(sequence, right); }

void StagedDrafts::end_pass(int64_t tokens, int64_t ns, bool comparable) {
  if (offered_ && comparable) gain_.took(reads_, tokens, ns);
}

}  // namespace outrider
