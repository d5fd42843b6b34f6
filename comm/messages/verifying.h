// Between the coordinator and the leader (tp_rank 0) of a target group, which broadcasts plans in the group.
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

// What may be drawn at one row of an entry's logits: behind the committed text (row 0), or behind draft token
// row - 1. It depends on the text up to there and on nothing else. A row without a mask may draw any token.
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
  Position first_input;     // == kv length: committed tokens [first_input, first_input + input_count) are fed
  int32_t input_count = 0;  // first_input + input_count == base: sample; less: a prefill chunk, no verdict
  std::vector<TokenId> draft;    // only when sampling
  std::vector<int32_t> parents;  // of a tree, as in Draft
  QKind q_kind = QKind::kNone;
  std::vector<QRow> q;            // as in Draft
  std::vector<HiddenRow> hidden;  // as in Draft
  Generation worker;              // kSlices: whose
  // Not 0, of a group that drafts itself: so many tokens at most are drafted for the round behind this one.
  // It has this number.
  int32_t next_gamma = 0;
  Round next_round;
  StopRule next_stop;
  TreeShape next_tree;  // match rules: how that draft may branch
  // Not negative: log-probabilities are told of the committed tokens that follow the inputs, and of so many
  // best ones there.
  int32_t prompt_logprobs = -1;
  std::vector<TokenMask> masks;  // only when sampling; rows ascend
  bool successors = false;       // only when sampling: the verdict tells those of each row

  DraftTreeView tree() const { return {draft, parents}; }
};

// What becomes of a prefix.
struct PrefixChange {
  enum class Kind : uint8_t {
    kKeep = 0,  // it is what the KV cache holds of the first `length` tokens of `sequence`, now
    kCut = 1,   // its first `length` tokens stay; 0: it is forgotten
  };
  Kind kind = Kind::kKeep;
  PrefixId prefix;
  SequenceId sequence;  // kKeep
  int32_t length = 0;
};

// StateRows of a sequence are asked for: of the tokens at [first, first + count), as far as they have keys
// and values behind the pass.
struct StateAsk {
  SequenceId sequence;
  Position first;
  int32_t count = 0;
  Generation worker;  // who gets them
};
constexpr int64_t kMostStateBytes = int64_t{32} << 20;  // of all rows that a plan asks for

// Every target rank replays the same plans, so block tables never travel.
struct StepPlan {
  uint64_t step = 0;
  // Sum of state_hash_term over open sequences and of prefix_hash_term over prefixes, before anything below
  // applies.
  uint64_t state_hash = 0;
  std::vector<PrefixChange> prefixes;  // applied first, in this order
  std::vector<SequenceId> closes;      // then these
  std::vector<Open> opens;             // and these
  std::vector<PlanEntry> entries;
  std::vector<StateAsk> states;  // one at most for a sequence, open behind the opens
};

// ---- from the leader ----------------------------------------------------------------------

struct TokenLogprob {
  TokenId id;
  float logprob = 0;
};

// Log-probabilities of the raw model before penalties, temperature and filters, where one token was emitted.
struct PositionLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;
};

enum class VerdictStatus : uint8_t { kOk = 0, kNonFinite = 1 };

// What the group decided for one entry: draft[0..accepted_count), or the nodes of `path`, and then `next` are
// committed on every rank.
struct Verdict {
  SequenceId sequence;
  Epoch epoch;  // of the entry; a rejection makes the sequence's epoch one larger
  Round round;
  Position base;
  VerdictStatus status = VerdictStatus::kOk;
  // A slice of q did not reach every rank in time: decided as if there had been no draft.
  bool draft_lost = false;
  bool link_lost = false;  // ... because the worker's communicator ended, of which the worker knows
  int32_t accepted_count = 0;
  std::vector<int32_t> path;               // of a tree: accepted_count nodes, from a child of the root on
  TokenId next;                            // recovery token (accepted_count < gamma) or bonus token
  std::vector<PositionLogprobs> logprobs;  // accepted_count + 1 of them when asked for
  // When asked for, kSuccessors behind the committed text and behind each draft token, as in TokenSuccessors.
  std::vector<TokenId> successors;
};

// Scores of one entry with prompt_logprobs: one for each of its inputs but the last one of a prompt, what
// follows which is a verdict's. A row whose logits are not finite tells minus infinity, and no others.
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
  std::vector<Draft> drafts;  // for the entries that asked for them, unless these failed
  int64_t draft_ns = 0;       // what all of them took
  // What was asked for, in plan order, where there is any; of one sequence in parts, one behind the other.
  std::vector<StateRows> states;
};

}  // namespace outrider
