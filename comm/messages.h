// Everything one role can tell another. Control is small and passes the coordinator, the only one who
// decides; draft workers and target ranks execute. comm/codec.h turns these structs into bounded frames and
// back.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/draft_tree.h"
#include "base/hidden_row.h"
#include "base/q_row.h"
#include "base/sampling_params.h"
#include "base/token_set.h"
#include "base/types.h"

namespace outrider {

constexpr uint32_t kProtocolVersion = 18;

// ---- joining and leaving
// -------------------------------------------------------------------------------------

enum class Role : uint8_t { kCoordinator = 0, kDraft = 1, kTarget = 2 };

// What must agree before two roles may work together.
struct ModelInfo {
  std::string name;                     // for people
  int32_t vocab_size = 0;               // rows of the output head, padding included
  uint64_t vocabulary_fingerprint = 0;  // of the id -> string table; equal means the ids mean the same. 0:
                                        // any vocabulary will do (n-gram drafters)
  uint64_t fingerprint = 0;             // of the model; two drafters with the same one draft the same
  int32_t max_context = 0;              // positions the model supports
  std::string isa;                      // instruction set its kernels use
};

// Where a target rank takes its slice of dense draft distributions.
struct SliceDoor {
  std::string endpoint;
  std::string gpu;  // and its host, if rows may also come from device to device (comm/row_link.h)
};
// The doors of all ranks, in rank order, and what a worker needs to send there. None: q travels in Draft
// and StepPlan.
struct SliceDoors {
  std::vector<SliceDoor> of_rank;
  uint64_t cluster = 0;                // of the frames
  std::string server_key;              // CURVE, one for all ranks; empty: not encrypted
  std::string public_key, secret_key;  // of all draft workers
};

// First message of a worker, and again after every reconnect. The version stays the first field: another
// version's Hello is read as far as that, to be refused in words.
struct Hello {
  uint32_t protocol_version = kProtocolVersion;
  Role role = Role::kDraft;
  Generation generation;  // new for every life of the worker
  ModelInfo model;
  int32_t max_sequences = 0;      // how many it can hold at once
  SliceDoors slices;              // of a target group
  uint64_t head_fingerprint = 0;  // of the draft model's output head, if q may be kHidden (draft_head.h)
  uint64_t own_drafter = 0;  // of a target group that drafts itself: the drafter's ModelInfo::fingerprint
  int64_t kv_blocks = 0;     // of a target rank's KV cache, the same on every rank; 0: it keeps no prefixes
  // Of a target group: it tells StateRows for the head of this fingerprint, of so many numbers each. Of a
  // draft worker: it drafts with that head, and needs them. 0: neither.
  uint64_t state_head = 0;
  int32_t state_width = 0;
  // Of a draft worker: it drafts with TokenSuccessors, which every target group can tell.
  bool successors = false;
  // Of a draft worker: it finds drafts in the text, and knows what they are worth (Propose::row_ns).
  bool finds_text = false;
};

// The answer: either the worker is in, and what it drafts for, or why not. These words every version
// understands.
struct Welcome {
  bool accepted = false;
  std::string reason;
  ModelInfo target;              // only when accepted: drafts stay inside its vocabulary ...
  std::vector<TokenId> eos_ids;  // ... and end at one of these
  SliceDoors slices;
};

struct Heartbeat {
  Generation generation;
};

// A worker cannot go on. From a target rank this ends every request with a typed error.
struct Failure {
  std::string message;
};

struct Shutdown {};

// ---- coordinator -> draft worker
// -----------------------------------------------------------------------------

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

// How draft distributions are sent. Match rules send none. kSlices: dense rows too, but Draft and StepPlan
// hold none; each target rank gets its slice of them straight from the worker. kHidden: the states that the
// dense rows are made from, with the output head that both ends have.
enum class QKind : uint8_t { kNone = 0, kDense = 1, kSparse = 2, kSlices = 3, kHidden = 4 };

// What a draft worker does while its last draft is verified (outcomes: what the verdict may commit).
enum class Pipeline : uint8_t {
  kLockstep = 0,  // nothing
  kAhead = 1,     // goes on as if everything will be accepted
  kFanout = 2,    // drafts for the most likely outcomes
  kAuto = 3,      // for as many outcomes as measured costs and hit rates make worth while
};

// When a drafter ends its draft early. Every rule is a stopping time: it sees the tokens that are sent and
// the distribution of the next one, never a token that is then withheld. kChances looks at distributions
// alone.
enum class StopKind : uint8_t {
  kNone = 0,
  kConfidence = 1,  // after a token with q < threshold; it is sent
  kSvip = 2,        // before a token whose distribution has sqrt(scale * entropy) > threshold
  kAdaEdl = 3,      // before a token whose distribution has 1 - sqrt(scale * entropy) < threshold
  kChances = 4,     // where so many tokens are accepted with too little chance (PlaceRule)
};

// kChances, at one place in a draft. A token is accepted after those before it with the chance
// 1 / (1 + exp(-(slope * margin + offset))), where `margin` is by how much the best token of the draft's
// distribution is ahead of the second, in nats: in the scores with the shared noise under the invariant rule,
// else in log probability. All tokens up to there are, with the product of their chances: one below
// `least_sent` is not sent, and behind one below `least_extended` no other is drafted.
struct PlaceRule {
  float slope = 0, offset = 0, least_sent = 0, least_extended = 0;
  bool operator==(const PlaceRule&) const = default;
};
constexpr float kMostMargin = 16;  // a larger one counts as so much

struct StopRule {
  StopKind kind = StopKind::kNone;
  float threshold = 0;
  float scale = 0;  // of the entropy in nats
  // Of kChances alone; the last holds for all that follow. None: it never stops.
  std::vector<PlaceRule> places;
};

// How a draft may branch, in one of three ways; in none: not at all, a chain.
struct TreeShape {
  std::vector<int32_t> widths;   // children of every node, level by level
  std::vector<int32_t> parents;  // as in DraftTree: this very tree, the better of two siblings first
  // Not 0: so many nodes at most, those that the target most likely comes to.
  int32_t nodes = 0;
  // With `nodes`: expected tokens that each of them, and each further pass of the draft model, has to bring.
  float node_price = 0, pass_price = 0;

  bool is_chain() const { return widths.empty() && parents.empty() && nodes == 0; }
  bool operator==(const TreeShape&) const = default;
};
constexpr int32_t kMostTreeChildren = 8;  // of one node

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

// ---- target -> coordinator -> draft worker
// ---------------------------------------------------------------

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

// ---- draft worker -> coordinator
// -----------------------------------------------------------------------------

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

// ---- draft worker -> every target rank
// ------------------------------------------------------------------------------------------

// A rank's slice of the draft distributions of a Draft with QKind::kSlices: the weights of the ids of its
// vocabulary range, each in 16 bits (base/short_weight.h).
struct QSlice {
  SequenceId sequence;
  Round round;
  Generation worker;              // as in its Hello
  int32_t rows = 0;               // as in Draft
  std::vector<uint16_t> weights;  // [rows, ids of the range]
};

// A worker with a GPU of its own has begun to make a communicator with the ranks (comm/row_link.h). A rank
// that cannot take part, now or later, answers with Failure.
struct LinkOffer {
  Generation worker;    // as in its Hello
  std::string id;       // names it
  bool states = false;  // for rows of states from the leader alone; else for rows of q to all ranks
};

// In place of a QSlice: a worker's next transfer through its communicator, `number` 1, 2, ..., and what ranks
// need to know of rows that lie on a device.
struct QTransfer {
  SequenceId sequence;
  Round round;
  Generation worker;
  uint64_t number = 0;
  std::vector<uint64_t> sums;     // of whole rows, one for each drafted token
  std::vector<uint64_t> drafted;  // weights of the drafted tokens
};

// ---- coordinator -> leader (tp_rank 0), which broadcasts it in the target group
// ------------------------------

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

// ---- leader -> coordinator
// -----------------------------------------------------------------------------------

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

// ---- leader -> draft worker, at the leader's door -------------------------------------------------------

// The next transfer through the communicator of the two, `number` 1, 2, ...: so many rows of states. Whose
// they are say the StateRows that name it. A worker that takes no more answers with Failure.
struct StateTransfer {
  uint64_t number = 0;
  int32_t rows = 0;
};

// ---- coordinator -> draft worker, once more
// -------------------------------------------------------------------------------------

// Its drafts have not paid for long: it gives its memory back, forgets its sequences, and says hello again
// after so long.
struct Rest {
  int64_t pause_ms = 0;
};

// ---- either direction
// ----------------------------------------------------------------------------------------

// "This is what I hold of the sequence": the other side compares and catches up, or starts it afresh.
struct Resync {
  SequenceId sequence;
  Epoch epoch;
  Position committed;
  uint64_t hash = 0;
  int32_t state_rows = 0;  // StateRows held, from the first token on
};

// The order is the wire's type number: append only.
using Message =
    std::variant<Hello, Welcome, Heartbeat, Failure, Shutdown, Open, Close, Propose, Draft, StepPlan,
                 StepResult, Resync, QSlice, LinkOffer, QTransfer, StateRows, Rest, StateTransfer>;

constexpr const char* kMessageNames[] = {
    "hello",   "welcome",    "heartbeat",  "failure",    "shutdown",    "open",
    "close",   "propose",    "draft",      "step_plan",  "step_result", "resync",
    "q_slice", "link_offer", "q_transfer", "state_rows", "rest",        "state_transfer"};
static_assert(std::size(kMessageNames) == std::variant_size_v<Message>);

}  // namespace outrider
