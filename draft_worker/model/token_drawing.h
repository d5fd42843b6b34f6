// Turns rows of the draft model's logits, or of its quantised hidden states, into drafted tokens and guesses.
// Internal to the model drafter.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "comm/collectives.h"
#include "draft_worker/model/drafting_state.h"
#include "draft_worker/model/ranked_pass.h"
#include "heads/token_guesses.h"
#include "kernels/sampling/confidence.h"
#include "kernels/sampling/draft_sampler.h"
#include "model/draft_head.h"

namespace outrider {

class TokenDrawing {
 public:
  // `state` must outlive it.
  explicit TokenDrawing(DraftingState& state);

  // Runs a pass of the model; drawing overwrites its rows. With `ranked`, if the device accepts it, rows are
  // ranked there, and only best() and guess_of_last() can be used. Errors as of Model::forward.
  Status run(std::span<const BatchSlice> slices, RankedPass* ranked = nullptr);

  // Draws the next token of a strand, from the row of the token before it. kMalformed: the row is not finite.
  Status draw(DraftedSequence& s, Strand& strand, int64_t row);
  // Appends a token that was drawn elsewhere. False: the stop rule ends the draft before it.
  bool add(DraftedSequence& s, Strand& strand, TokenId token, const DraftConfidence& confidence);
  static Status not_finite(const Strand& strand);

  // The token that would have been drafted in place of the last committed one; -1: unknown. Penalties have
  // counted that token already, so this works under match rules without penalties only.
  TokenId guess_of_last(const DraftedSequence& s, int64_t row);
  static DraftStep step_of_last(const DraftedSequence& s);
  // Guesses for the target's token at `step`, best first. Empty: the row is not finite. `draws_bonus`: a
  // bonus token is drawn from q there.
  std::optional<TokenGuesses> guesses(const DraftedSequence& s, const StrandKey& key, const DraftStep& step,
                                      int64_t row, bool draws_bonus);
  // The best `count` tokens at `step`, under match rules; valid until the next call. Empty as above.
  std::optional<std::span<const RankedToken>> best(const DraftedSequence& s, const DraftStep& step,
                                                   int64_t row, size_t count);
  // q at `step`, for drawing several tokens. Null: the row is not finite. Valid until the next call.
  QRow* weigh(const StrandKey& key, const DraftStep& step, int64_t row);
  // The hidden state of the last row's logits, under QKind::kHidden.
  HiddenRow& hidden();

 private:
  std::span<float> logits_row(int64_t row) {
    CHECK(!ranked_, "row {} is on the device", row);
    return logits_.logits.row(row).first(static_cast<size_t>(state_.vocab_size));
  }
  std::span<float> logits_row(const StrandKey& key, int64_t row);

  DraftingState& state_;
  const std::unique_ptr<Collectives> single_;
  DraftSampler sampler_;
  TokenGuesser guesser_;
  LogitsShard logits_;
  const RankedPass* ranked_ = nullptr;  // replaces logits
  QRow q_;
  // For a row that travels as its hidden state: that state, and the logits computed from it.
  HiddenRow hidden_;
  std::vector<float> head_logits_;
  DraftHead::Scratch head_scratch_;
};

}  // namespace outrider
