// A way to guess the next tokens. Implementations keep their own state per sequence; one thread calls them.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "comm/messages/drafting.h"
#include "transformer/model/model.h"

namespace outrider {

class DraftHead;
class RowSender;
class TextGuesser;

// What came of a round that was begun.
struct DraftAnswer {
  Status status;  // not ok: this worker and the coordinator disagree about the sequence; a Resync helps
  Draft draft;
  bool wanted = true;  // false: gamma was 0, so nobody waits for it
};

class Drafter {
 public:
  virtual ~Drafter() = default;

  // kResourceExhausted: no room for another sequence. Opening an open sequence starts it afresh, unless that
  // text is known: such an Open came late or twice, and a round that is under way goes on.
  virtual Status open(const Open& open) = 0;
  virtual void close(SequenceId sequence) = 0;
  // Takes on a round, in place of one of the same sequence that is under way: rolls back to the committed
  // text, reads what is new of it, and drafts at most propose.gamma tokens; gamma 0 only reads. The round
  // that is under way, once more, changes nothing. Fewer tokens (or none) is a valid answer: the context
  // ends, or a block ends at an end-of-sequence token. kNotFound or kMalformed: this worker and the
  // coordinator disagree about the sequence.
  virtual Status begin(const Propose& propose) = 0;
  // Rows of the target's states, for a drafter that reads them. Not ok, of any code: it lacks the rows in
  // front of these, or the sequence, and a Resync helps.
  virtual Status take(const StateRows&) { return {}; }
  // One piece of work, at most one forward pass, or the passes of one draft of a device or a head: the rounds
  // that were begun, all in one batch, before anything is prepared for later ones. Appends what got finished
  // to `answers`. False: nothing was left to do.
  virtual bool work(std::vector<DraftAnswer>& answers) = 0;
  // A draft of an answer that is no longer needed: its storage may serve later ones.
  virtual void reuse(Draft) {}
  // What is held of a sequence; nothing known is committed 0.
  virtual Resync held(SequenceId sequence) const = 0;
  virtual int32_t max_context() const = 0;
};

struct ModelDrafterOptions {
  int32_t max_sequences = 16;
  // What was read of so many closed sequences serves others that begin alike, in KV blocks that nobody needs.
  int32_t kept_texts = 0;
  std::vector<TokenId> eos_ids;  // a block ends at one of these
  int64_t vocab_size = 0;        // ids that may be drafted; 0: all. Padding that the target lacks is left out
  std::function<std::chrono::steady_clock::time_point()> now = std::chrono::steady_clock::now;
  // Rows of q that a device draws from may stay there until they are sent. Null: none do. Must outlive the
  // drafter.
  RowSender* rows = nullptr;
  // The head of the drafting model for the ids that may be drafted (QKind::kHidden). Null: not offered. Must
  // outlive the drafter, and the model must compute on the host.
  const DraftHead* head = nullptr;
  // What the draft model's own tokens are guessed by (staged_drafts.h). Null: nothing. The model must compute
  // on the host.
  std::shared_ptr<TextGuesser> guesser = nullptr;
};
// What a draft model reads in place of an id that only its target has (ModelOptions::stand_in). Drafting goes
// on behind it, as if this token stood there.
inline constexpr TokenId kDraftStandIn{0};
// A smaller language model with the target's vocabulary, of which it may lack ids at the end, if it was
// loaded with a stand-in for them, or have more. `model` must outlive the drafter. Preparing for outcomes
// takes KV blocks: what is not there is not prepared.
std::unique_ptr<Drafter> make_model_drafter(Model& model, ModelDrafterOptions options);

// The KV tokens that preparing for `outcomes` outcomes of one sequence may take, with drafts of `gamma`
// tokens.
int64_t kv_tokens_for_outcomes(int64_t outcomes, int64_t gamma);
// How many texts are extended at a time, when so many outcomes of each sequence are prepared for: what a
// model that draws tokens itself should plan for (ModelOptions::run_sequences).
int64_t runs_at_a_time(int64_t sequences, int64_t outcomes);

struct NgramDrafterOptions {
  int32_t max_sequences = 1024;
  int32_t max_context = 1 << 20;
  int32_t min_ngram = 1;  // length of the suffix that is looked up, longest first
  int32_t max_ngram = 4;
};
// Prompt lookup (Saxena 2023): what followed the last occurrence of the text's own suffix. No model at all;
// its q is one-hot.
std::unique_ptr<Drafter> make_ngram_drafter(NgramDrafterOptions options);

struct SuffixDrafterOptions {
  int32_t max_sequences = 1024;
  int32_t max_context = 1 << 20;
  // Tokens kept of the outputs of finished sequences, in which other texts are looked up; the oldest are
  // forgotten. 0: a sequence is looked up in its own text alone. 28 bytes a token.
  int32_t history_tokens = 1 << 18;
  // A token is drafted if the whole draft up to it is right with at least this chance.
  double least_chance = 0.1;
};
// Suffix decoding (Oliaro et al. 2025): what followed where the text's suffix stood before, in its own text
// and in outputs of earlier sequences, by vote; how many tokens, by how often such tokens were right. Its q
// is one-hot.
std::unique_ptr<Drafter> make_suffix_drafter(SuffixDrafterOptions options);

struct RecyclingDrafterOptions {
  int32_t max_sequences = 1024;
  int32_t max_context = 1 << 20;
  // A token of a chain is drafted if the whole draft up to it is right with at least this chance.
  double least_chance = 0.1;
};
// Token recycling (Luo et al. 2024): walks through a table of the tokens that the target ranked best behind
// each token, which come with Proposes (Hello::successors). One table for all sequences without a salt, of
// some 60 bytes for each id that was seen, and one for each sequence with a salt. Its q is one-hot.
std::unique_ptr<Drafter> make_recycling_drafter(RecyclingDrafterOptions options);

struct LookaheadDrafterOptions {
  int32_t max_sequences = 1024;
  int32_t max_context = 1 << 20;
  int32_t ngram = 4;  // tokens of an n-gram, the one that it is found by included
};
// Lookahead decoding (Fu et al. 2024): half of a tree's nodes are for n-grams that the target itself made,
// the others for the window that makes them, with what it ranks best (Hello::successors). A pool of n-grams
// for each sequence. Drafts that are chains have guesses alone, of n-grams of the text. Its q is one-hot.
std::unique_ptr<Drafter> make_lookahead_drafter(LookaheadDrafterOptions options);

}  // namespace outrider
