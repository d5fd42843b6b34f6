// Messages between the coordinator and a draft worker. Open and Close also go to a target group, inside its
// plans.
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

// Names the keys and values of a text that target ranks keep, whether or not its sequence is open. The
// coordinator chooses ids and never repeats one.
using PrefixId = StrongInt<struct PrefixIdTag, uint64_t>;

struct Open {
  SequenceId sequence;
  std::vector<TokenId> ids;   // the prompt
  int32_t prompt_length = 0;  // ids after it were generated (the sequence moved to this worker)
  SamplingParams sampling;
  // A KV prefix may be shared between sequences whose ids begin alike only if their salts are equal.
  uint64_t salt = 0;
  // To a target: the first `prefix_length` ids take their keys and values from this prefix; 0: no prefix.
  PrefixId prefix;
  int32_t prefix_length = 0;
  Epoch epoch;  // to a target: the sequence's epoch, since it may have been open before
};

struct Close {
  SequenceId sequence;
};

// The tokens that the target ranks best after tokens of its input, from the raw logits of one pass (token
// recycling, Luo et al. 2024). They only improve drafts; the text never depends on them.
constexpr int32_t kSuccessors = 8;  // for one token, best first; padded with -1
struct TokenSuccessors {
  std::vector<TokenId> tokens;
  std::vector<TokenId> best;  // [tokens, kSuccessors]

  bool empty() const { return tokens.empty(); }
  bool operator==(const TokenSuccessors&) const = default;
};

// Asks for a draft of `gamma` tokens after the committed prefix. Carries every committed token the worker has
// not seen, even if gamma is 0. A newer Propose for a sequence supersedes an older one.
struct Propose {
  SequenceId sequence;
  Epoch epoch;
  Round round;
  Position base;                   // committed length C: the position of the first token to draft
  std::vector<TokenId> committed;  // ids at positions [base - committed.size(), base)
  int32_t gamma = 0;
  QKind q_kind = QKind::kNone;
  int32_t row_bytes = 0;      // kSparse: byte limit of a row on the wire
  int32_t code_bits = 0;      // kHidden: bits of an element of a hidden state
  int32_t sent_after_us = 0;  // time since the first sending, for a repeated Propose; Draft returns it
  Pipeline pipeline = Pipeline::kLockstep;
  int32_t fanout = 0;          // limit of the outcomes to prepare for
  StopRule stop;               // may end the draft before gamma; before its first token only kChances does
  bool wants_guess = false;    // for records: return the guess for the last committed token
  TreeShape tree;              // match rules and tree rules; a path has gamma tokens at most
  TokenSuccessors successors;  // those since the last Propose, newest last; at most kMaxSuccessorRows
  // To a worker that finds drafts in the text (Hello::finds_text) beside its model: the maximal length of a
  // draft found in the text. May be positive where gamma is 0.
  int32_t text_gamma = 0;
  int64_t pass_ns = 0, row_ns = 0;  // share of a pass without drafts; cost of a further row; 0: unknown
};
constexpr int32_t kMaxSuccessorRows = 256;

// Hidden states of the target at committed positions, the input of a head (heads/hidden_state_projection.h).
// A row depends only on the committed text up to its token, so rows may come late, repeated and in any order.
struct HiddenStateRows {
  SequenceId sequence;
  Position first;                // of the token of the first row
  std::vector<TokenId> ids;      // to a worker: the token after that of each row; empty from the target
  int32_t width = 0;             // elements of a row
  std::vector<uint16_t> values;  // [rows, width], bf16
  // Not 0: `count` rows go straight to the worker's device instead, by this transfer (HiddenStateTransfer),
  // and `values` is empty.
  uint64_t transfer = 0;
  int32_t count = 0;

  int64_t rows() const {
    return transfer > 0 ? count : static_cast<int64_t>(values.size()) / std::max(1, width);
  }
};

// Unloads the worker, because its drafts have not paid for long: it frees its memory, forgets its sequences,
// and says Hello again after the pause.
struct Unload {
  int64_t pause_ms = 0;
};

// ---- from a draft worker ----------------------------------------------------------------------

// The benefit of preparing ahead for one draft. A prepared draft equals the draft made on request; it is only
// earlier.
struct PreparationReport {
  bool looked_up = false;     // whether the outcome of the last draft could have been prepared for
  bool hit = false;           // whether at least one token of this draft was prepared
  int32_t used_tokens = 0;    // tokens of this draft that were prepared
  int32_t wasted_tokens = 0;  // prepared and discarded, all sequences, since the worker's last Draft
  int32_t outcomes = 0;       // number of outcomes prepared for at the last draft of this sequence
  int64_t busy_ns = 0;        // time spent preparing, all sequences, since the worker's last Draft
};

struct Draft {
  SequenceId sequence;
  Epoch epoch;
  Round round;
  Position base;
  std::vector<TokenId> ids;      // a chain of 0 to gamma tokens, or a tree of that depth
  std::vector<int32_t> parents;  // as in DraftTree; empty: a chain
  uint64_t prefix_hash = 0;      // of the committed ids [0, base) that the draft continues
  QKind q_kind = QKind::kNone;
  std::vector<QRow> q;            // kDense, kSparse: one row per id of a chain; see RowNumbers
  std::vector<HiddenRow> hidden;  // the same with kHidden
  int64_t slice_bytes = 0;        // kSlices: bytes sent to the ranks
  int64_t link_bytes = 0;         // the part of slice_bytes that went from device to device
  bool eos = false;               // the block ends early, at an end-of-sequence token
  bool from_text = false;         // found in the text, within Propose::text_gamma, without a model
  TokenId guess{-1};              // guess for the last committed token, from the text before it; -1: unknown
  std::vector<float> margins;     // of each token (PlaceRule), with StopKind::kChances; else empty
  int32_t sent_after_us = 0;      // of the Propose that it answers
  int64_t ingest_ns = 0;          // time for prefilling committed tokens; draft_ns: for drafting
  int64_t draft_ns = 0;
  PreparationReport preparation;

  DraftTreeView tree() const { return {ids, parents}; }
};

// ---- either direction ----------------------------------------------------------------------

// A peer's state of the sequence. The other side compares it, and catches up or restarts the sequence.
struct Resync {
  SequenceId sequence;
  Epoch epoch;
  Position committed;
  uint64_t hash = 0;
  int32_t hidden_state_rows = 0;  // number of HiddenStateRows held, from the first token on
};

}  // namespace outrider
