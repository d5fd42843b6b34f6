// The interface of drafters, which guess the next tokens. Implementations keep state per sequence; one thread
// calls them.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "comm/messages/drafting.h"
#include "model/model.h"

namespace outrider {

class DraftHead;
class RowSender;
class TextGuesser;

// The result of a round.
struct DraftAnswer {
  Status status;  // not ok: this worker and the coordinator disagree about the sequence; a Resync helps
  Draft draft;
  bool wanted = true;  // false: gamma was 0, so no answer is sent
};

class Drafter {
 public:
  virtual ~Drafter() = default;

  // kResourceExhausted: no room for another sequence. Opening an open sequence restarts it, unless its text
  // is the same: such an Open came late or twice, and the current round goes on.
  virtual Status open(const Open& open) = 0;
  virtual void close(SequenceId sequence) = 0;
  // Begins a round, in place of a current one of the same sequence: rolls back to the committed text,
  // prefills its new tokens, and drafts at most propose.gamma tokens; gamma 0 only prefills. Repeating the
  // current round changes nothing. Fewer tokens (or none) is a valid answer: the context ends, or a block
  // ends at an end-of-sequence token. kNotFound or kMalformed: this worker and the coordinator disagree about
  // the sequence.
  virtual Status begin(const Propose& propose) = 0;
  // Takes hidden states of the target, for a head. An error: the rows before these, or the sequence, are
  // missing, and a Resync helps.
  virtual Status take(const HiddenStateRows&) { return {}; }
  // Does one piece of work: at most one forward pass, or the passes of one draft of a device or a head. All
  // begun rounds run in one batch, before any preparation. Appends finished rounds to `answers`. False: no
  // work left.
  virtual bool work(std::vector<DraftAnswer>& answers) = 0;
  // Returns a draft that is no longer needed; its storage may serve later ones.
  virtual void reuse(Draft) {}
  // The held state of a sequence; committed 0 if the sequence is unknown.
  virtual Resync held(SequenceId sequence) const = 0;
  virtual int32_t max_context() const = 0;
};

struct ModelDrafterOptions {
  int32_t max_sequences = 16;
  // The number of closed sequences whose KV serves texts that begin alike, in KV blocks without other use.
  int32_t kept_texts = 0;
  // The model reads only the first `sinks` and the last `window` tokens of a text with more tokens to prefill
  // (attention sinks: Xiao et al. 2023, arXiv 2309.17453). 0: it reads the whole text.
  int32_t window = 0, sinks = 4;
  std::vector<TokenId> eos_ids;  // a block ends at an end-of-sequence token
  int64_t vocab_size = 0;        // ids that may be drafted; 0: all. Excludes padding that the target lacks
  std::function<std::chrono::steady_clock::time_point()> now = std::chrono::steady_clock::now;
  // Rows of q that a device draws from may stay there until they are sent. Null: rows never stay there. Must
  // outlive the drafter.
  RowSender* rows = nullptr;
  // The output head of the draft model for the ids that may be drafted (QKind::kHidden). Null: not offered.
  // Must outlive the drafter, and the model must compute on the host.
  const DraftHead* head = nullptr;
  // Guesses tokens of the draft model itself (staged_drafts.h). Null: none. The model must compute on the
  // host.
  std::shared_ptr<TextGuesser> guesser = nullptr;
};
// The draft model's input in place of an id that only the target has (ModelOptions::stand_in). Drafting
// continues after it as if this token stood there.
inline constexpr TokenId kDraftStandIn{0};
// A smaller language model with the target's vocabulary. It may have more ids at the end, or fewer if it was
// loaded with a stand-in for them. `model` must outlive the drafter. Preparing for outcomes takes KV blocks;
// without free blocks nothing is prepared.
std::unique_ptr<Drafter> make_model_drafter(Model& model, ModelDrafterOptions options);

// KV tokens for preparing `outcomes` outcomes of one sequence, with drafts of `gamma` tokens.
int64_t kv_tokens_for_outcomes(int64_t outcomes, int64_t gamma);
// The number of texts that are extended at a time when this many outcomes of each sequence are prepared for.
// A model that draws tokens itself should plan for it (ModelOptions::run_sequences).
int64_t runs_at_a_time(int64_t sequences, int64_t outcomes);

struct NgramDrafterOptions {
  int32_t max_sequences = 1024;
  int32_t max_context = 1 << 20;
  int32_t min_ngram = 1;  // shortest suffix that is looked up; longest first
  int32_t max_ngram = 4;
};
// Prompt lookup (Saxena 2023): the tokens after the last occurrence of the text's own suffix. Needs no model;
// its q is one-hot.
std::unique_ptr<Drafter> make_ngram_drafter(NgramDrafterOptions options);

struct SuffixDrafterOptions {
  int32_t max_sequences = 1024;
  int32_t max_context = 1 << 20;
  // Tokens of finished outputs that are kept for lookups by other texts; the oldest are dropped. 0: lookups
  // use the sequence's own text only. 28 bytes a token.
  int32_t history_tokens = 1 << 18;
  // A token is drafted if the whole draft up to it is right with at least this probability.
  double least_chance = 0.1;
};
// Suffix decoding (Oliaro et al. 2025): the tokens after earlier occurrences of the text's suffix, in its own
// text and in outputs of earlier sequences, by vote. The length follows from how often such tokens were
// right. Its q is one-hot.
std::unique_ptr<Drafter> make_suffix_drafter(SuffixDrafterOptions options);

struct RecyclingDrafterOptions {
  int32_t max_sequences = 1024;
  int32_t max_context = 1 << 20;
  // A token of a chain is drafted if the whole draft up to it is right with at least this probability.
  double least_chance = 0.1;
};
// Token recycling (Luo et al. 2024): walks through a table of the tokens that the target ranked best after
// each token, which come with Proposes (Hello::successors). One table for all sequences without a salt, with
// some 60 bytes for each seen id, and one for each sequence with a salt. Its q is one-hot.
std::unique_ptr<Drafter> make_recycling_drafter(RecyclingDrafterOptions options);

struct LookaheadDrafterOptions {
  int32_t max_sequences = 1024;
  int32_t max_context = 1 << 20;
  int32_t ngram = 4;  // tokens of an n-gram, including its key
};
// Lookahead decoding (Fu et al. 2024): half of a tree's nodes are for n-grams that the target itself
// generated, the other half for the window that generates them from its best tokens (Hello::successors). A
// pool of n-grams for each sequence. Drafts that are chains have only guesses, from n-grams of the text. Its
// q is one-hot.
std::unique_ptr<Drafter> make_lookahead_drafter(LookaheadDrafterOptions options);

}  // namespace outrider
