// Drafts of a head for many sequences, wherever the head computes. It gets the committed text, requests the
// hidden states that it has not read yet, and draws tokens as any drafter does. Drafted tokens leave nothing
// behind: accepted tokens are read again from the target's own hidden states, so a draft depends on the text
// alone. One thread.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/q_row.h"
#include "base/sampling_params.h"
#include "base/types.h"
#include "comm/messages/draft_forms.h"
#include "heads/head.h"
#include "kernels/sampling/token_counts.h"
#include "model/kv/kv_cache.h"

namespace outrider {

class ExitedTokens;

// The target's hidden states, as the head reads them (Head::committed_hidden_states).
class HiddenStateSource {
 public:
  virtual ~HiddenStateSource() = default;
  // Those of positions [first, first + rows) of a sequence, whose tokens are committed: to [rows, hidden
  // size], where the head computes.
  virtual void read(SequenceId sequence, int64_t first, FloatRows to) = 0;
};

// One sequence's draft request; the fields are those of Propose.
struct HeadTask {
  SequenceId sequence;
  std::span<const TokenId> committed;
  const SamplingParams* sampling = nullptr;
  const TokenCounts* counts = nullptr;
  Round round;
  int32_t gamma = 0;      // 0: nothing is drafted, and what is new of the text is read
  StopRule stop;          // may end the draft before gamma, never before its first token
  int32_t row_bytes = 0;  // rules with q: of its sparse rows; 0: dense ones
  // How it may branch, with paths of gamma tokens at most; null: a chain. Of rules with q only those for
  // trees, and fixed shapes.
  const TreeShape* tree = nullptr;

  // For drafters that read the target's own cache: the sequence there, with all committed tokens but the
  // last.
  KvHandle kv;

  bool branches() const { return tree && !tree->is_chain() && gamma > 0; }
};

struct HeadDraft {
  std::vector<TokenId> ids;      // none: the text is too long, or logits were not finite
  std::vector<int32_t> parents;  // of a tree, as in Draft
  std::vector<QRow> q;           // one for each, under rules that need them
  bool eos = false;              // a chain that ends with an end-of-sequence token

  void clear() {
    ids.clear();
    parents.clear();
    q.clear();
    eos = false;
  }
};

struct HeadDrafterOptions {
  int32_t max_sequences = 16;
  std::vector<TokenId> eos_ids;
};

class HeadDrafter {
 public:
  virtual ~HeadDrafter() = default;

  // Drafts for all tasks together; drafts[i] is of tasks[i], and its storage is used again. The longest text
  // that was drafted for of a sequence must still be its beginning.
  virtual void draft(std::span<const HeadTask> tasks, HiddenStateSource& hidden_states,
                     std::vector<HeadDraft>& drafts) = 0;
  virtual void close(SequenceId sequence) = 0;
  // Results of drafting that the target's next pass over a sequence need not compute again. Null or empty (as
  // with a target on a device): the pass computes everything.
  virtual const ExitedTokens* exited(SequenceId) const { return nullptr; }

  // Times of the last draft(): until all first tokens were there, and from then on.
  virtual int64_t ingest_ns() const = 0;
  virtual int64_t draft_ns() const = 0;
};

// `head` must outlive the drafter, which has its cache for itself.
std::unique_ptr<HeadDrafter> make_head_drafter(Head& head, HeadDrafterOptions options);

}  // namespace outrider
