// The coordinator's decisions as a pure machine: step(event, now) -> actions. No clock, thread, socket or
// random number inside, so thousands of fault schedules run per second in a test. protocol.md draws the
// rounds. One owner thread.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/codec.h"
#include "coordinator/answer_time.h"
#include "coordinator/cost_model.h"
#include "coordinator/events.h"
#include "coordinator/gamma/gamma_policy.h"
#include "coordinator/live_request.h"
#include "coordinator/metrics.h"
#include "transformer/tokenizer/tokenizer.h"

namespace outrider {

class AcceptanceProcess;

struct ProtocolOptions {
  int32_t max_num_seqs = 16;                     // running at once; the target's own limit also holds
  int32_t max_queued = 1024;                     // requests waiting; more are refused
  int64_t max_queued_tokens = int64_t{4} << 20;  // prompt tokens waiting
  int32_t max_rows_per_step =
      512;  // decode, verify and prefill rows of one pass; a quarter is kept for prefill
  size_t max_bytes_per_step = WireLimits{}.frame_bytes;  // what one StepPlan may take, and the same quarter
  int32_t prefill_chunk = 256;                           // prompt tokens of one sequence per pass
  int32_t gamma_max = kDefaultGammaMax;
  int32_t max_context = 0;  // 0: what the target supports
  std::vector<TokenId> eos_ids;
  // How p/q rules get their q. Dense rows go to the target's ranks in slices where these have doors for them.
  QKind q_kind = QKind::kSparse;
  int32_t row_bytes = 1024;  // of each drafted token's row of q, with kSparse
  // Of an element of a state, with kHidden; what cannot be sent so is sent as kSparse.
  int32_t code_bits = 4;
  // What draft workers do while their drafts are verified.
  Pipeline pipeline = Pipeline::kLockstep;
  int32_t fanout = 8;  // outcomes prepared for at most, per sequence

  // Match rules: have workers tell what they would have drafted where a fully accepted draft ended, so that a
  // record of the rounds can be replayed at other lengths. Costs a row of the draft model's head each time.
  bool record_guesses = false;
  // Verdicts are not the models' (--synthetic-acceptance), so the text says nothing about a shadow draft.
  // Null: they are.
  std::shared_ptr<const AcceptanceProcess> synthetic_acceptance;

  // A round waits for its draft this many times the average round, within bounds ...
  double draft_timeout_rounds = 3;
  std::chrono::milliseconds draft_timeout_min{250};
  // A Propose is sent again when its Draft is overdue (AnswerTime), but no sooner than this, and while
  // nothing is usual yet after repeat_first.
  std::chrono::microseconds repeat_min{500}, repeat_first{20'000};
  // ... and at most so much longer where the worker has a prompt to read first, which takes some time per
  // token.
  std::chrono::milliseconds first_draft_timeout{10'000};
  // Under p/q rules lateness must not decide, it may hang on the tokens: only a worker that looks dead is
  // given up, after so many average rounds or plain passes, within bounds that know nothing of tokens either.
  double liveness_rounds = 50;
  std::chrono::milliseconds liveness_timeout_min{5'000};
  std::chrono::milliseconds liveness_timeout{30'000};
  // After k misses in a row a worker is left alone for 2^k of the times that were waited, at most this long;
  // so long at once if it is silent. A slow or dead worker thus costs a falling share of the time.
  std::chrono::milliseconds max_back_off{32'000};
  // A silent target ends every request: max(this, 50 average steps).
  std::chrono::milliseconds step_timeout_min{60'000};
  std::chrono::milliseconds target_join_timeout{120'000};
};

class Protocol {
 public:
  // Without a tokenizer no text is made and stop strings are refused.
  Protocol(ProtocolOptions options, GammaPolicyFactory gamma, const Tokenizer* tokenizer = nullptr);

  std::vector<Action> step(Event event, Clock::time_point now);
  // When to come back with a Tick at the latest, if nothing else happens.
  std::optional<Clock::time_point> next_deadline() const;

  bool has_target() const { return target_.has_value(); }
  std::optional<PeerId> target() const { return target_ ? std::optional(target_->peer) : std::nullopt; }
  const Status& target_status() const { return target_status_; }  // why there is none, after one was lost
  size_t open_requests() const { return queue_.size() + running_; }
  size_t running_requests() const { return running_; }
  int64_t queued_tokens() const { return queued_tokens_; }  // prompt tokens waiting
  size_t worker_count() const { return workers_.size(); }
  // A draft worker that was let in, or that waits for the target.
  bool has_worker(PeerId peer) const { return workers_.contains(peer) || early_workers_.contains(peer); }
  const Totals& totals() const { return totals_; }
  const CostModel& cost() const { return cost_; }
  // For tests and diagnostics; nullptr when unknown.
  const LiveRequest* find(SequenceId id) const;

 private:
  struct Target {
    PeerId peer;
    Hello hello;
  };
  // Shadow drafts that a worker was asked for at once, as far as they have come.
  struct ShadowPhase {
    Clock::time_point sent_at{};
    int32_t longest = 0;
    int64_t reading_ns = 0, drafting_ns = 0;
  };
  struct Worker {
    Hello hello;
    DrafterKind kind = 0;
    int32_t held = 0;                  // sequences it was given
    int32_t misses = 0;                // rounds in a row that it let down
    bool silent = false;               // nothing was heard from it since the last of them
    Clock::time_point resume_at{};     // left alone until then
    Clock::time_point silent_until{};  // the same while it stays silent
    std::optional<uint64_t> asked_in;  // the step whose rounds it last drafted for
    ShadowPhase shadows;
    AnswerTime answer_time;
    bool slices = true;        // none of its slices of q was lost yet
    double token_ns = 0;       // how long a drafted token is waited for; 0: not known
    double read_token_ns = 0;  // how long it reads a committed one; 0: not known
    Clock::time_point measured_at{};
    bool usable(Clock::time_point now) const { return now >= (silent ? silent_until : resume_at); }
    std::vector<SequenceId> unsent_closes;  // its queue was full; bounded by what it can hold
  };
  struct PlannedEntry {
    SequenceId sequence;
    int32_t input_count = 0;
    bool sampling = false;
    bool first = false;  // ends a prefill
  };
  struct OutstandingPlan {
    uint64_t step = 0;
    std::vector<PlannedEntry> entries;
    int32_t rows = 0;
    size_t bytes = 0;       // of its frame at most
    int64_t context = 0;    // summed over the entries
    bool prefills = false;  // some rows are prompt rows, which cost otherwise
    Clock::time_point sent_at;
  };

  // protocol.cpp: events, and requests from submission to finish
  void on(Submit& event);
  void on(Cancel& event);
  void on(MessageReceived& event);
  void on(PeerLost& event);
  void on(SendFailed& event);
  void on(Tick&) {}
  void receive(PeerId peer, Hello& message);
  void receive(PeerId peer, Failure& message);
  void receive(PeerId peer, Shutdown& message);
  void receive(PeerId peer, Heartbeat&) { (void)peer; }  // the loop's membership reads these
  void receive(PeerId peer, Draft& message);             // of `frame_bytes_`
  void receive(PeerId peer, StepResult& message);
  void receive(PeerId peer, Resync& message);
  void receive(PeerId peer, Open&) { unexpected(peer); }
  void receive(PeerId peer, Close&) { unexpected(peer); }
  void receive(PeerId peer, Propose&) { unexpected(peer); }
  void receive(PeerId peer, StepPlan&) { unexpected(peer); }
  void receive(PeerId peer, Welcome&) { unexpected(peer); }
  void receive(PeerId peer, QSlice&) { unexpected(peer); }
  void receive(PeerId peer, LinkOffer&) { unexpected(peer); }
  void receive(PeerId peer, QTransfer&) { unexpected(peer); }
  void unexpected(PeerId) { ++totals_.unexpected_messages; }
  Status check_request(const Request& request) const;
  void finish(LiveRequest& live, FinishReason reason, Status error = {});
  void refuse(Submit& event, Status error);
  Status check_fits(LiveRequest& live) const;
  Clock::duration step_timeout() const;
  void pump();
  void expire();
  void admit();
  void sweep();

  // protocol_peers.cpp: who takes part
  void target_joined(PeerId peer, Hello& hello);
  void worker_joined(PeerId peer, Hello& hello);
  Status check_worker(const Hello& hello) const;
  void refuse_hello(PeerId peer, std::string reason);
  void target_lost(Status why);
  std::optional<DrafterKind> forget_worker(PeerId peer);
  void worker_lost(PeerId peer);
  void worker_left(PeerId peer);
  void worker_missed(Worker& worker) { worker_missed(worker, draft_timeout()); }
  void worker_missed(Worker& worker, Clock::duration waited);
  void worker_answered(Worker& worker, const RoundInFlight& round);
  double slowness(const Worker& worker) const;
  DrafterKind kind_of(const Hello& hello) const;
  void assign_workers();
  void assign_worker(LiveRequest& live);
  std::pair<const PeerId, Worker>* best_worker(LiveRequest& live);
  void use_kind(LiveRequest& live, DrafterKind kind);
  void open_at(PeerId peer, LiveRequest& live);
  void close_at_worker(LiveRequest& live);
  bool needs_resuming(PeerId peer, const Worker& worker) const;
  void resume_workers();
  Worker* worker_of(const LiveRequest& live);

  // protocol_draft.cpp: gamma, Propose, Draft
  void begin_round(LiveRequest& live);
  int32_t gamma_limit(const LiveRequest& live, const Worker& worker) const;
  QKind q_kind(const LiveRequest& live, const Worker& worker) const;
  bool sends_states(const LiveRequest& live, const Worker& worker) const;
  void ask_for_q(const LiveRequest& live, const Worker& worker, Propose& message) const;
  GammaContext gamma_context(const LiveRequest& live, const Worker& worker) const;
  bool reads_along(const LiveRequest& live, const Worker& worker) const;
  int32_t unread(const LiveRequest& live) const;
  Clock::duration reading_time(const LiveRequest& live) const;
  void ask(LiveRequest& live);
  Clock::duration repeat_time(const Worker& worker, int32_t gamma) const;
  Clock::duration expected_reading(const Worker& worker, int32_t unread) const;
  void learn_reading(Worker& worker, const Proposal& proposal, const Draft& draft);
  Clock::duration lost_time(const Proposal& proposal, const Draft& draft) const;
  void repeat_overdue();
  void ask_aside(LiveRequest& live, int32_t gamma);
  void propose(LiveRequest& live, int32_t gamma, Pipeline pipeline);
  bool tests_shadows(const LiveRequest& live) const;
  void take_shadow(LiveRequest& live, Draft& draft);
  void learn_shadow(Worker& worker, const LiveRequest& live, const Draft& draft, Clock::duration waited);
  void compare_shadow(LiveRequest& live);
  std::optional<int32_t> accepted_of(const ShadowDraft& shadow, const Sequence& sequence) const;
  void decide(LiveRequest& live);
  void go_plain(LiveRequest& live);
  void drop(DropReason reason) { ++totals_.drafts_dropped[static_cast<size_t>(reason)]; }
  Clock::duration draft_timeout() const;
  Clock::duration liveness_timeout() const;

  // protocol_plan.cpp: the StepPlan
  void plan();
  bool waits_for_drafts() const;
  size_t decode_bytes() const { return options_.max_bytes_per_step - options_.max_bytes_per_step / 4; }
  std::vector<LiveRequest*> in_state(RequestState state);
  void plan_entry(LiveRequest& live, int32_t input_count, StepPlan* step);
  void learn_draft_phase(std::optional<DrafterKind> kind, CostModel& cost);

  // protocol_verdict.cpp: verdicts and commits
  Status check_logprobs(const PositionLogprobs& at, TokenId token, int32_t most) const;
  Status check_verdict(const LiveRequest& live, const Verdict& verdict) const;
  Status check_result(const StepResult& result) const;
  void learn_round_time(const RoundInFlight& round, bool prefills);
  void apply_verdict(LiveRequest& live, const PlannedEntry& entry, Verdict& verdict,
                     const StepResult& result);
  void lose_draft(LiveRequest& live, bool link_lost);
  void teach(LiveRequest& live, const Verdict& verdict, int32_t emitted);
  std::optional<FinishReason> commit(LiveRequest& live, Verdict& verdict);
  std::optional<FinishReason> reason_to_finish(const LiveRequest& live, TokenId last) const;
  void record(LiveRequest& live, const PlannedEntry& entry, const Verdict& verdict, int32_t emitted,
              const StepResult& result);

  // One kind alone is all there is to know.
  const CostModel& cost_of(DrafterKind kind) const {
    return costs_.size() > 1 && kind != 0 ? costs_.at(kind) : cost_;
  }
  void send(PeerId to, Message message);
  int32_t max_context() const;

  const ProtocolOptions options_;
  const GammaPolicyFactory gamma_;
  const Tokenizer* const tokenizer_;

  Clock::time_point now_{};
  std::vector<Action>* actions_ = nullptr;  // of the step that runs
  size_t frame_bytes_ = 0;                  // of the message that it received

  std::optional<Clock::time_point> join_deadline_;  // set while no target is there
  std::optional<Target> target_;
  Status target_status_;  // why there is none, after one was lost
  std::map<PeerId, Worker> workers_;
  std::map<PeerId, Hello> early_workers_;  // said hello before the target; bounded
  GoodputByKind goodput_;                  // of all sequences

  std::deque<SequenceId> queue_;
  int64_t queued_tokens_ = 0;
  size_t running_ = 0;  // admitted and not finished
  std::map<SequenceId, std::unique_ptr<LiveRequest>> live_;

  uint64_t next_step_ = 0;
  std::optional<OutstandingPlan> plan_;
  double round_ewma_ns_ = 0, step_ewma_ns_ = 0;
  double prompt_ns_ = 0, prompt_rows_ = 0;                    // of the target's passes with prompt rows
  bool had_ordinary_round_ = false;                           // with a draft and no prompt rows
  CostModel cost_;                                            // whatever drafts
  std::map<DrafterKind, CostModel> costs_;                    // of every kind that ever joined; bounded
  std::vector<std::pair<PeerId, double>> draft_busy_;         // scratch: seconds of one plan, by worker
  std::vector<std::pair<const PeerId, Worker>*> candidates_;  // scratch, as the next
  std::vector<DrafterKind> kinds_here_;
  Totals totals_;
};

}  // namespace outrider
