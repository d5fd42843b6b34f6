// A drafter that uses ids only: it needs no model, so drafts take no time and nothing is prepared. A
// TextGuesser makes the guesses. Its q is one-hot.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "draft_worker/drafter.h"

namespace outrider {

class TextGuesser {
 public:
  virtual ~TextGuesser() = default;
  // Begins a sequence with this text, or restarts it; the output follows prompt_length ids. `alone`: no other
  // text learns from it, nor does it learn from others (Open::salt).
  virtual void open(SequenceId sequence, std::span<const TokenId> text, int32_t prompt_length,
                    bool alone) = 0;
  // Sets the sequence's text, which begins with the known one.
  virtual void extend(SequenceId sequence, std::span<const TokenId> text) = 0;
  virtual void close(SequenceId sequence) = 0;
  // Writes at most `most` tokens that may follow `text` to `out`. `text` is that of the last extend().
  virtual void guess(SequenceId sequence, std::span<const TokenId> text, int32_t most,
                     std::vector<TokenId>& out) = 0;
  // Takes the tokens that the target ranked best in this sequence; called after extend().
  virtual void learn(SequenceId, const TokenSuccessors& successors) { (void)successors; }
  // Whether guess_tree() takes shapes that list their nodes. Matches in a text have no ranks to assign to
  // siblings.
  virtual bool ranks_siblings() const { return false; }
  // For each token of the newest guess, the chance that the guess is right up to it. Empty: unknown.
  virtual std::span<const double> chances(SequenceId sequence) const {
    (void)sequence;
    return {};
  }
  // The first `right` tokens of the newest guess were drawn, and the next one, if any, was not. Called only
  // for drafters that cannot infer this from the text they are given.
  virtual void verified(SequenceId, int32_t right) { (void)right; }
  // A guess as a tree of this shape, whose paths have at most `depth` tokens; a chain is a tree.
  virtual DraftTree guess_tree(SequenceId sequence, std::span<const TokenId> text, const TreeShape& shape,
                               int32_t depth) {
    (void)shape;
    DraftTree chain;
    guess(sequence, text, depth, chain.ids);
    return chain;
  }
};

std::shared_ptr<TextGuesser> make_ngram_guesser(const NgramDrafterOptions& options);
std::shared_ptr<TextGuesser> make_suffix_guesser(const SuffixDrafterOptions& options);
std::shared_ptr<TextGuesser> make_recycling_guesser(const RecyclingDrafterOptions& options);
std::shared_ptr<TextGuesser> make_lookahead_guesser(const LookaheadDrafterOptions& options);

// Drafts of the model, or of the guesser where it should bring more tokens per second (Propose::text_gamma).
// The guesser must implement chances().
std::unique_ptr<Drafter> make_text_or_model_drafter(std::unique_ptr<Drafter> model,
                                                    std::shared_ptr<TextGuesser> guesser);

struct TextDrafterOptions {
  int32_t max_sequences = 1024;
  int32_t max_context = 1 << 20;
};
std::unique_ptr<Drafter> make_text_drafter(std::shared_ptr<TextGuesser> guesser, TextDrafterOptions options);

}  // namespace outrider
