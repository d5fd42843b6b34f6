// A drafter that looks at ids alone: no model, so drafting is done at once and nothing is prepared. What is
// guessed is left to a TextGuesser. Its q is one-hot.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "draft_worker/drafter.h"

namespace outrider {

class TextGuesser {
 public:
  virtual ~TextGuesser() = default;
  // A sequence begins with this text, or begins afresh; the output follows prompt_length ids. With `alone` it
  // neither learns from other texts nor they from it (Open::salt).
  virtual void open(SequenceId sequence, std::span<const TokenId> text, int32_t prompt_length,
                    bool alone) = 0;
  // The sequence's text now; what was known of it is its beginning.
  virtual void extend(SequenceId sequence, std::span<const TokenId> text) = 0;
  virtual void close(SequenceId sequence) = 0;
  // Puts at most `most` tokens that may follow `text`, which extend() was told of, into `out`.
  virtual void guess(SequenceId sequence, std::span<const TokenId> text, int32_t most,
                     std::vector<TokenId>& out) = 0;
  // What the target ranked best in this sequence, as it comes; behind extend().
  virtual void learn(SequenceId, const TokenSuccessors& successors) { (void)successors; }
  // Whether guess_tree() takes shapes that list their nodes: what stood in a text has no ranks that siblings
  // could follow.
  virtual bool ranks_siblings() const { return false; }
  // Of each token of the newest guess, the chance that the guess is right up to it. None: not known.
  virtual std::span<const double> chances(SequenceId sequence) const {
    (void)sequence;
    return {};
  }
  // Of the newest guess the first `right` tokens were drawn, and the next one, if there is one, was not. Only
  // whose text does not tell is told.
  virtual void verified(SequenceId, int32_t right) { (void)right; }
  // A guess as a tree of this shape, whose paths have `depth` tokens at most; a chain is one.
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

// Drafts of the model, or of the guesser where these are expected to bring more tokens a second
// (Propose::text_gamma); only a guesser that knows chances() is asked.
std::unique_ptr<Drafter> make_text_or_model_drafter(std::unique_ptr<Drafter> model,
                                                    std::shared_ptr<TextGuesser> guesser);

struct TextDrafterOptions {
  int32_t max_sequences = 1024;
  int32_t max_context = 1 << 20;
};
std::unique_ptr<Drafter> make_text_drafter(std::shared_ptr<TextGuesser> guesser, TextDrafterOptions options);

}  // namespace outrider
