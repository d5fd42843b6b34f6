// One request inside the protocol machine, a record used by several parts: its sequence; the link to its
// draft worker (WorkerPool assigns it, DraftRounds proposes over it); and the current round (DraftRounds
// begins and decides it, StepPlanner plans it, Verdicts ends it).
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>

#include "comm/messages/drafting.h"
#include "comm/transport.h"
#include "coordinator/choices/drafter_choice.h"
#include "coordinator/choices/rank_acceptance.h"
#include "coordinator/gamma/gamma_policy.h"
#include "coordinator/metrics/metrics.h"
#include "coordinator/request/constraint.h"
#include "coordinator/request/request.h"
#include "coordinator/request/sequence.h"
#include "coordinator/request/text_stream.h"
#include "coordinator/scheduler/kv_ledger.h"

namespace outrider {

// The outstanding Propose. It is sent again when its answer is overdue, because it or the answer may be lost;
// after many repeats each pause grows by an eighth.
struct Proposal {
  Propose message;
  QKind first_q_kind = QKind::kNone;  // the first kind requested in this round; `message` has the last one
  Clock::time_point sent_at{};        // of the first one
  int32_t unread = 0;                 // tokens to prefill first, if there are many
  bool guessed = false;               // the deadline is a guess, since there were no answers yet
  Clock::duration repeat_after{};     // 0: never
  Clock::time_point repeat_at{};
  int32_t repeats = 0;

  std::array<QKind, 2> q_kinds() const { return {first_q_kind, message.q_kind}; }
  // The time from the first Propose to the one that this draft answers.
  Clock::duration lost_time(const Draft& draft) const {
    return std::chrono::microseconds(std::clamp(draft.sent_after_us, 0, message.sent_after_us));
  }
};

inline Clock::duration busy_time(const Draft& draft) {
  return std::chrono::nanoseconds(draft.ingest_ns + draft.draft_ns);
}

// A probe draft: requested while the sequence's rounds continue without it (GammaPolicy::probe_draft).
struct ProbeDraft {
  Round round;  // the plain round in which it was requested
  Epoch epoch;
  Position base;
  uint64_t prefix_hash = 0;
  int32_t gamma = 0;
  int32_t unread = 0;  // LiveRequest::unread
  Clock::time_point sent_at, deadline;
  std::optional<std::vector<TokenId>> ids;  // set on arrival; compared once the text has grown past them
};

// Decides whether to ask a worker that finds drafts in the text, in a round without a model's draft: more and
// more rarely while it finds none, since the round waits for the answer.
struct TextAsks {
  int32_t in_vain = 0, skip = 0;  // consecutive vain requests; rounds until the next request
  bool next() {
    if (skip > 0) --skip;
    return skip == 0;
  }
  void answered(bool found) {
    in_vain = found ? 0 : std::min(in_vain + 1, 5);
    skip = found ? 0 : (1 << in_vain) - 1;
  }
};

// A worker this far behind is timed like one with a new prompt. Fewer tokens fit into a pass that it makes
// anyway.
inline constexpr int32_t kCatchUpTokens = 64;

// The draft worker's state of a sequence, as far as it follows from the messages sent.
struct DraftLink {
  std::optional<PeerId> peer;
  bool opened = false;
  bool fresh = true;           // no draft came back since Open: it may still be reading the prompt
  int32_t max_prefill = 0;     // Hello::max_prefill of the worker
  int32_t known = 0;           // committed ids sent to it
  int32_t hidden_states = 0;   // HiddenStateRows sent to it, from the first token on
  int32_t resyncs = 0;         // of this round; bounded
  TokenSuccessors successors;  // for its next Propose
  std::optional<ProbeDraft> probe_draft;
  Proposal proposal;  // valid while a round or a probe draft waits for its draft
};

// The current round.
struct RoundInFlight {
  Round number;
  DrafterKind kind = 0;      // of the worker at its beginning; 0: none
  int32_t gamma = 0;         // requested from the worker
  TreeShape tree;            // requested from the worker
  bool tree_wanted = false;  // this round may branch, to find out whether drafts should
  int32_t text_gamma = 0;    // requested length of a draft found in the text
  bool priced = false;       // the drafter finds drafts in the text, and ends them where rows stop paying
  bool ranks_rows = false;   // its verdict returns TokenSuccessors
  bool own = false;          // only the target may draft for it
  bool has_draft = false;
  bool used = false;         // the draft went into a plan
  bool read_prompt = false;  // the worker had to prefill a prompt first
  size_t draft_bytes = 0;    // of its frame
  Draft draft;               // for the plan; empty for a plain row
  ConstraintRoom room;       // of a request with a grammar
  RoundMasks masks;          // the same
  Generation worker;         // the worker that drafted it
  Clock::time_point begun_at, decided_at, planned_at;
  Clock::time_point draft_deadline;  // the round goes on without its draft
  Clock::time_point batch_deadline;  // the others go on without this round

  int32_t drafted() const { return static_cast<int32_t>(draft.ids.size()); }
  bool found() const { return priced && gamma > 0; }
  // The decided length; of a draft that the drafter ended, its own length.
  int32_t asked() const { return found() ? std::max(1, drafted()) : gamma; }
  bool asks() const { return gamma > 0 || text_gamma > 0; }
  bool from_text() const { return has_draft && draft.from_text; }
  int32_t drafted_by_drafter() const { return drafted() - masks.forced; }
  int32_t depth() const { return tree_depth(draft.tree()); }  // the length of its longest path
};

// A round that the previous plan asked the target to draft for, and the result.
struct CoLocatedDraft {
  bool asked = false;
  Round round;
  int32_t gamma = 0;  // requested
  TreeShape tree;     // requested
  bool tree_wanted = false;
  std::optional<Draft> draft;
  size_t bytes = 0;  // of its frame, at most
};

// The time that the drafts of a paying request took from others, in plain passes (DraftShares).
struct DraftDebt {
  double owed = 0;
  double newest = 0;  // the part of the newest draft
  // Whether it must not draft until the older debt is paid. One draft may be owed, because the debts of
  // requests with equal settings, but rounds at different times, differ by about that.
  bool is_due() const { return owed > newest; }
};

// A prompt that one group prefills and another decodes (PromptHandoffs).
struct Handoff {
  int32_t prefill_to = 0;        // above 0: its group only prefills, these whole blocks of tokens
  uint64_t transfer = 0;         // of its blocks; 0: none is decided, or no blocks are awaited any more
  int32_t from = -1, to = -1;    // groups
  int32_t first = 0, end = 0;    // tokens whose blocks are sent
  uint64_t inbox = 0;            // of the group `to`
  // Behind it the prompt is computed there. None: the blocks could not be taken in yet.
  std::optional<Clock::time_point> deadline = {};
};

struct LiveRequest {
  LiveRequest(SequenceId id, Request asked)
      : request(std::move(asked)), sequence(id, std::move(request.prompt)) {
    if (request.grammar) constraint = std::make_unique<Constraint>(request.grammar);
  }

  SequenceId id() const { return sequence.id(); }
  bool finished() const { return state == RequestState::kFinished; }
  bool awaits_draft() const {
    return state == RequestState::kDrafting || (link.probe_draft && !link.probe_draft->ids);
  }
  // Tokens that its worker has to prefill before it drafts; 0: few enough for its usual times.
  int32_t unread() const {
    const int32_t behind = sequence.committed() - (link.fresh ? 0 : link.known);
    const int32_t most = link.max_prefill > 0 ? std::min(behind, link.max_prefill) : behind;
    return link.fresh || behind > kCatchUpTokens ? most : 0;
  }
  bool running() const { return !finished() && state != RequestState::kQueued; }
  void become(RequestState next) {
    CHECK(may_become(state, next), "request {}: {} -> {}", id().value(), request_state_name(state),
          request_state_name(next));
    state = next;
  }

  // True after a preemption or the loss of its target group: its text is prefilled again, there or in another
  // group. Its round continues unchanged when all but the last token is prefilled.
  bool recomputes() const { return sequence.emitted() > 0; }
  bool has_recomputed() const {
    return recomputes() && sequence.target.open && sequence.target.kv_length == sequence.committed() - 1;
  }

  // A prefill ends with this many tokens in the KV cache: in a group that only prefills before its last
  // block, after a preemption before the last token, whose round goes on; else with the first round.
  int32_t prefill_end() const {
    return handoff.prefill_to > 0 ? handoff.prefill_to : sequence.committed() - (recomputes() ? 1 : 0);
  }
  // In a group that only prefills: its part is done.
  bool has_prefilled() const {
    return handoff.prefill_to > 0 && sequence.target.open && sequence.target.kv_length >= handoff.prefill_to;
  }
  // In a group that decodes: the blocks of its prompt are under way.
  bool awaits_blocks() const { return handoff.prefill_to == 0 && handoff.transfer > 0; }

  // Applies the grammar to the round's draft.
  void constrain() {
    if (constraint) constraint->settle(round.draft, request.sampling.rule, round.room, round.masks);
  }
  // The round's draft is settled, with or without tokens.
  void decide(Clock::time_point now) {
    constrain();
    round.decided_at = now;
    ready_at = now;
    become(RequestState::kReady);
  }
  // Continues the round without its draft, under a new number for which no uniform was drawn; a late Draft is
  // stale.
  void go_plain(Clock::time_point now) {
    forget_draft();
    decide(now);
  }
  void forget_draft() {
    round.number = sequence.begin_round();
    round.has_draft = false;
    round.draft = {};
  }
  // Its target group is gone. A plan without a result is verified in another group under the same round
  // number, with the same draws and the same outcome. True: its draft was in that plan, and the request waits
  // for a draft again.
  bool lose_group() {
    const bool back = state == RequestState::kVerifying && round.used && round.has_draft;
    sequence.target.open = false;
    kv = {};
    handoff = {};
    round.used = false;
    round.read_prompt = true;  // its time is no measure of a round
    if (state == RequestState::kVerifying) become(RequestState::kPrefill);
    if (recomputes()) return back;
    sequence.restart_rounds();
    own = {};
    return back;
  }
  Open open() const {
    const auto ids = sequence.ids();
    return {.sequence = id(),
            .ids = {ids.begin(), ids.end()},
            .prompt_length = sequence.prompt_length(),
            .sampling = request.sampling,
            .salt = salt_hash(request.cache_salt),
            .prefix = {},
            .epoch = sequence.epoch()};
  }

  Request request;  // its prompt has moved into the sequence
  Sequence sequence;
  RequestState state = RequestState::kQueued;
  int32_t group = -1;                  // its target group; -1: it waits for a slot
  int32_t scores_to = 0;               // the client has prompt_logprobs up to this position
  std::unique_ptr<GammaPolicy> gamma;  // of `kind`, once there was a drafter
  DrafterKind kind = 0;
  std::map<DrafterKind, std::unique_ptr<GammaPolicy>> other_gammas;  // of kinds it had before
  DrafterChoice choice;
  std::unique_ptr<TextStream> text;        // none without a tokenizer
  std::unique_ptr<Constraint> constraint;  // none without a grammar
  DraftLink link;
  CoLocatedDraft own;  // of the next round
  DraftDebt debt;
  TextAsks text_asks;
  RoundInFlight round;
  Handoff handoff;
  KvShare kv;  // while it is open on the target
  Clock::time_point ready_at{};
  size_t open_bytes = 0;  // of the frame of the prompt's Open
  RequestMetrics metrics;
  RankAcceptance ranks;  // per request, so that under p/q rules its text depends on no other request
};

using RequestMap = std::map<SequenceId, std::unique_ptr<LiveRequest>>;

}  // namespace outrider
