// A text that the draft model drafts for: its cached part, the current round, and the last draft with the
// branches that are prepared for its verification. Internal to the model drafter.
#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include "comm/messages/drafting.h"
#include "draft_worker/draft_window.h"
#include "draft_worker/model/growing_tree.h"
#include "draft_worker/model/outcome_statistics.h"
#include "draft_worker/model/strand.h"
#include "draft_worker/model/strand_storage.h"
#include "heads/token_guesses.h"
#include "kernels/sampling/draft_sampler.h"
#include "kernels/sampling/penalties.h"

namespace outrider {

// The current round.
struct DraftJob {
  void clear() {
    preparation = {};
    guess = TokenId(-1);
    ingest_ns = draft_ns = 0;
    previous_sent_at.reset();
    was_prepared = branches = false;
    guesses.clear();
    tree.clear();
  }
  Propose propose;
  Strand strand;
  PreparationReport preparation;
  TokenId guess{-1};  // of the last committed token
  int64_t ingest_ns = 0, draft_ns = 0;
  // When the previous draft was sent, and whether outcomes were prepared for it.
  std::optional<std::chrono::steady_clock::time_point> previous_sent_at;
  bool was_prepared = false;
  bool branches = false;  // the draft is a tree, in `tree`; the strand stays empty
  GrowingTree tree;
  // Input of the next pass: `inputs`, then `guesses`, the tokens that the model is expected to draw.
  std::vector<TokenId> inputs, guesses;
};

// A draft made ahead for one outcome of the last draft.
struct PreparedBranch {
  Outcome outcome;
  Strand strand;
  std::optional<KvHandle> kv;  // once it has KV entries
};

// The last draft, which is being verified, and the branches prepared for its outcomes.
struct SentBlock {
  void clear() {
    for (auto* list : {&ids, &inputs}) list->clear();
    outcomes.clear();
    guesses.clear();
    branches.clear();
    planned = false;
    first_guess = 0;
  }

  StrandKey key;
  Position base;
  std::vector<TokenId> ids;
  Pipeline pipeline = Pipeline::kLockstep;
  int32_t fanout = 0, gamma = 0;
  bool eos = false;
  bool prepare = false;  // false: Pipeline::kAuto decided against it
  std::chrono::steady_clock::time_point sent_at;
  bool planned = false;
  std::vector<Outcome> outcomes;  // to prepare for, best first, until `inputs` were fed
  std::vector<TokenId> inputs;    // the last committed token and the block, as far as outcomes need guesses
  size_t first_guess = 0;  // the guesses at inputs[0] are for the token after this many tokens of the block
  std::vector<std::optional<TokenGuesses>> guesses;  // [i]: of token i; [ids.size()]: of the bonus token
  std::vector<PreparedBranch> branches;
};

struct DraftedSequence {
  DraftWindow window;  // of kv
  uint64_t salt = 0;
  SamplingParams sampling;
  TokenCounts counts;  // of the committed tokens; kept only when penalties need it
  KvHandle kv;
  Kept<DraftJob> job;
  Kept<SentBlock> block;
  Kept<GrownTree> grown;  // the last draft that branched
};

// A sequence's part of a pass, in slices.
struct PassPart {
  DraftedSequence* sequence;
  size_t slices;
};

// The position and context of a strand's next token.
inline DraftStep next_step(const DraftedSequence& s, const Strand& strand) {
  return {.sampling = &s.sampling,
          .counts = &s.counts,
          .drafted = strand.tokens,
          .position = strand.base + strand.length(),
          .round = strand.key.round,
          .row_bytes = strand.key.q_kind == QKind::kSparse ? strand.key.row_bytes : 0};
}

}  // namespace outrider
