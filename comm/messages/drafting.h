// Between the coordinator and a draft worker. Open and Close go to a target group, too, inside its plans.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/draft_tree.h"
#include "base/hidden_row.h"
#include "base/q_row.h"
#include "base/sampling_params.h"
#include "base/types.h"
#include "comm/messages/draft_forms.h"

namespace outrider {

// ---- to a draft worker ----------------------------------------------------------------------

// Names keys and values that target ranks keep of a text, whether or not its sequence is open. Given by the
// coordinator, never twice.
using PrefixId = StrongInt<struct PrefixIdTag, uint64_t>;

struct Open {
  SequenceId sequence;
  std::vector<TokenId> ids;   // the prompt
  int32_t prompt_length = 0;  // ids beyond it were generated (a sequence that moved to this worker)
  SamplingParams sampling;
  // What one sequence computed of its text may serve another whose ids begin alike and whose salt is equal.
  uint64_t salt = 0;
  // To a target: the keys and values of the first `prefix_length` ids are those of this prefix; 0: none are.
  PrefixId prefix;
  int32_t prefix_length = 0;
  Epoch epoch;  // to a target: that of the sequence, which may have been open before
};

struct Close {
  SequenceId sequence;
};

// The tokens that the target ranks best behind tokens that it read, from the raw logits of one pass (token
// recycling, Luo et al. 2024). Plain values that help to guess; a text never depends on them.
constexpr int32_t kSuccessors = 8;  // of one token, best first; -1 in place of those that there are not
struct TokenSuccessors {
  std::vector<TokenId> tokens;
  std::vector<TokenId> best;  // [tokens, kSuccessors]

  bool empty() const { return tokens.empty(); }
  bool operator==(const TokenSuccessors&) const = default;
};

// Draft `gamma` tokens after the committed prefix. Carries every committed token the worker has not seen,
// also when gamma is 0. A newer Propose for a sequence supersedes an older one.
struct Propose {
  SequenceId sequence;
  Epoch epoch;
  Round round;
  Position base;                   // committed length C: the position of the first token to draft
  std::vector<TokenId> committed;  // ids at positions [base - committed.size(), base)
  int32_t gamma = 0;
  QKind q_kind = QKind::kNone;
  int32_t row_bytes = 0;      // for kSparse: what a row may take on the wire
  int32_t code_bits = 0;      // for kHidden: of an element of a state
  int32_t sent_after_us = 0;  // of one that is sent again: so long after the first. Draft returns it
  Pipeline pipeline = Pipeline::kLockstep;
  int32_t fanout = 0;          // outcomes to prepare for at most
  StopRule stop;               // may end the draft before gamma; before its first token only kChances does
  bool wants_guess = false;    // for records: what would have been drafted for the last committed token
  TreeShape tree;              // match rules and tree rules; a path has gamma tokens at most
  TokenSuccessors successors;  // what has come since the last Propose, newest last; kMostSuccessorRows
  // Of a worker that finds drafts in the text (Hello::finds_text) beside its model: such a draft may have so
  // many tokens, also where gamma is 0.
  int32_t text_gamma = 0;
  int64_t pass_ns = 0, row_ns = 0;  // its share of a pass without drafts, and a further row; 0: not told
};
constexpr int32_t kMostSuccessorRows = 256;

// What a head reads of the target's states at committed positions (heads/state_projection.h). A row depends
// on the text up to its token alone, and that is committed, so rows may come late, twice and in any order.
struct StateRows {
  SequenceId sequence;
  Position first;                // of the token of the first row
  std::vector<TokenId> ids;      // to a worker: the token behind that of each row; the target tells none
  int32_t width = 0;             // numbers of a row
  std::vector<uint16_t> values;  // [rows, width], bf16
  // Not 0: `count` rows go straight to the worker's device instead, by this transfer (StateTransfer), and
  // `values` is empty.
  uint64_t transfer = 0;
  int32_t count = 0;

  int64_t rows() const {
    return transfer > 0 ? count : static_cast<int64_t>(values.size()) / std::max(1, width);
  }
};

// Its drafts have not paid for long: it gives its memory back, forgets its sequences, and says hello again
// after so long.
struct Rest {
  int64_t pause_ms = 0;
};

// ---- from a draft worker ----------------------------------------------------------------------

// What preparing ahead was good for. A prepared draft is the very draft that would have been made, only
// earlier.
struct PreparationReport {
  bool looked_up = false;     // the outcome of this sequence's last draft could have been prepared for
  bool hit = false;           // ... and at least one of this draft's tokens was ready
  int32_t used_tokens = 0;    // of this draft: drafted before they were asked for
  int32_t wasted_tokens = 0;  // drafted ahead and thrown away, all sequences, since the worker's last Draft
  int32_t outcomes = 0;       // prepared for at the last draft of this sequence
  int64_t busy_ns = 0;        // time spent preparing, all sequences, since the worker's last Draft
};

struct Draft {
  SequenceId sequence;
  Epoch epoch;
  Round round;
  Position base;
  std::vector<TokenId> ids;      // a chain of 0..gamma tokens, or a tree of that depth
  std::vector<int32_t> parents;  // as in DraftTree; empty: a chain
  uint64_t prefix_hash = 0;      // of the committed ids [0, base) that were drafted from
  QKind q_kind = QKind::kNone;
  std::vector<QRow> q;            // with kDense and kSparse: one per id of a chain; RowNumbers
  std::vector<HiddenRow> hidden;  // the same with kHidden
  int64_t slice_bytes = 0;        // kSlices: what was sent to the ranks
  int64_t link_bytes = 0;         // the part of slice_bytes that went from device to device
  bool eos = false;               // the block ends early, at an end-of-sequence token
  bool from_text = false;         // found in the text, within Propose::text_gamma; no model drew it
  TokenId guess{-1};              // of the last committed token, from what stands before it; -1: not known
  std::vector<float> margins;     // of each token (PlaceRule), with StopKind::kChances; else none
  int32_t sent_after_us = 0;      // of the Propose that it answers
  int64_t ingest_ns = 0;          // time spent on committed tokens, and on drafting
  int64_t draft_ns = 0;
  PreparationReport preparation;

  DraftTreeView tree() const { return {ids, parents}; }
};

// ---- either direction ----------------------------------------------------------------------

// "This is what I hold of the sequence": the other side compares and catches up, or starts it afresh.
struct Resync {
  SequenceId sequence;
  Epoch epoch;
  Position committed;
  uint64_t hash = 0;
  int32_t state_rows = 0;  // StateRows held, from the first token on
};

}  // namespace outrider
