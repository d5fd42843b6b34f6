// Messages between the coordinator and the leader (tp_rank 0) of a target group, which broadcasts plans to
// the group.
#pragma once

#include <cstdint>
#include <vector>

#include "base/draft_tree.h"
#include "base/hidden_row.h"
#include "base/q_row.h"
#include "base/token_set.h"
#include "base/types.h"
#include "comm/messages/draft_forms.h"
#include "comm/messages/drafting.h"

namespace outrider {

// ---- to the leader ----------------------------------------------------------------------

// The tokens that may be drawn at one row of an entry's logits: after the committed text (row 0), or after
// draft token row - 1. The set depends only on the text up to there. A row without a mask may draw any token.
struct TokenMask {
  int32_t row = 0;
  TokenSet allowed;
};

// One sequence's rows in one forward pass.
struct PlanEntry {
  SequenceId sequence;
  Epoch epoch;
  Round round;
  Position base;            // committed length C
  Position first_input;     // == kv length; input: committed tokens [first_input, first_input + input_count)
  int32_t input_count = 0;  // base - first_input: sample; less: a prefill chunk without a verdict
  std::vector<TokenId> draft;    // only when sampling
  std::vector<int32_t> parents;  // of a tree, as in Draft
  QKind q_kind = QKind::kNone;
  std::vector<QRow> q;            // as in Draft
  std::vector<HiddenRow> hidden;  // as in Draft
  Generation worker;              // kSlices: the worker that sends them
  // A group that drafts itself: drafts at most this many tokens for the next round, whose number is
  // next_round. 0: no draft.
  int32_t next_gamma = 0;
  Round next_round;
  StopRule next_stop;
  TreeShape next_tree;  // match rules: how that draft may branch
  // Not negative: return log-probabilities of the committed tokens that follow the inputs, and of this many
  // best tokens at each position.
  int32_t prompt_logprobs = -1;
  std::vector<TokenMask> masks;  // only when sampling; rows ascend
  bool successors = false;       // only when sampling: the Verdict returns the successors of each row

  DraftTreeView tree() const { return {draft, parents}; }
};

// A change of a stored prefix.
struct PrefixChange {
  enum class Kind : uint8_t {
    kKeep = 0,  // keep the KV cache's first `length` tokens of `sequence`, as they are now
    kCut = 1,   // keep only the first `length` tokens of the prefix; 0: drop it
  };
  Kind kind = Kind::kKeep;
  PrefixId prefix;
  SequenceId sequence;  // kKeep
  int32_t length = 0;
};

// Requests HiddenStateRows of a sequence: for the tokens at [first, first + count) that have keys and values
// after the pass.
struct HiddenStateRequest {
  SequenceId sequence;
  Position first;
  int32_t count = 0;
  Generation worker;  // the receiver
};
constexpr int64_t kMaxHiddenStateBytes = int64_t{32} << 20;  // limit for all rows of a plan

// A group that only prefills sends whole blocks of a sequence's keys and values, [first, first + count), to
// the group that will decode it: each rank to the same rank there, as KvBlocks.
struct BlockExport {
  SequenceId sequence;
  uint64_t transfer = 0;  // its number: 1, 2, ...
  Position first;
  int32_t count = 0;   // tokens
  uint64_t inbox = 0;  // of the other group, as in its Hello
};
// That group takes them in, if all its ranks have them all: the sequence then has keys and values of `count`
// tokens more. Otherwise nothing happens.
struct BlockImport {
  SequenceId sequence;
  uint64_t transfer = 0;
  Position first;  // == kv length
  int32_t count = 0;
};

// Every target rank replays the same plans, so block tables never travel.
struct StepPlan {
  uint64_t step = 0;
  // Sum of state_hash_term over open sequences and of prefix_hash_term over prefixes, before this plan is
  // applied.
  uint64_t state_hash = 0;
  std::vector<BlockExport> exports;    // of sequences that are open before the plan; applied first
  std::vector<PrefixChange> prefixes;  // applied second, in this order
  std::vector<SequenceId> closes;      // applied third
  std::vector<Open> opens;             // applied fourth
  std::vector<PlanEntry> entries;
  std::vector<BlockImport> imports;  // of open sequences without an entry; applied after the pass
  std::vector<HiddenStateRequest> hidden_states;  // at most one for a sequence, which is open after the opens
};

// ---- from the leader ----------------------------------------------------------------------

struct TokenLogprob {
  TokenId id;
  float logprob = 0;
};

// Log-probabilities of the raw model, before penalties, temperature and filters, at an emitted token.
struct PositionLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;
};

enum class VerdictStatus : uint8_t { kOk = 0, kNonFinite = 1 };

// The group's decision for one entry: draft[0..accepted_count), or the nodes of `path`, and then `next` are
// committed on every rank.
struct Verdict {
  SequenceId sequence;
  Epoch epoch;  // of the entry; a rejection increases the sequence's epoch by one
  Round round;
  Position base;
  VerdictStatus status = VerdictStatus::kOk;
  // A slice of q did not reach every rank in time: the entry was verified without its draft.
  bool draft_lost = false;
  bool link_lost = false;  // ... because the worker's communicator ended; the worker knows
  int32_t accepted_count = 0;
  std::vector<int32_t> path;               // of a tree: accepted_count nodes, from a child of the root on
  TokenId next;                            // recovery token (accepted_count < gamma) or bonus token
  std::vector<PositionLogprobs> logprobs;  // accepted_count + 1 entries when asked for
  // When asked for: kSuccessors tokens after the committed text and after each draft token, as in
  // TokenSuccessors.
  std::vector<TokenId> successors;
};

// Scores of one entry with prompt_logprobs: one for each input, except the last one of a prompt, whose next
// token is in a verdict. A row with non-finite logits yields minus infinity and no alternatives.
struct PromptScores {
  SequenceId sequence;
  std::vector<PositionLogprobs> logprobs;
};

struct StepResult {
  uint64_t step = 0;
  std::vector<Verdict> verdicts;     // one per sampling entry, in plan order
  std::vector<PromptScores> scores;  // one per entry with prompt_logprobs, in plan order
  int64_t forward_ns = 0;
  int64_t verify_ns = 0;      // vocabulary arithmetic and its collectives
  int64_t commit_ns = 0;      // KV truncation and bookkeeping
  std::vector<Draft> drafts;  // for the entries that asked for one, unless drafting failed
  int64_t draft_ns = 0;       // for all drafts together
  // The requested rows, in plan order, as far as available. A sequence's rows may come in consecutive parts.
  std::vector<HiddenStateRows> hidden_states;
  std::vector<int64_t> exported;  // bytes sent by all ranks, for each export; 0: some rank could not send
  std::vector<uint8_t> imported;  // for each import, 1: its blocks are there now; 0: nothing happened
};

}  // namespace outrider
