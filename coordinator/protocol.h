// The coordinator's decisions as a pure machine: step(event, now) -> actions. No clock, thread, socket or
// random number inside, so thousands of fault schedules run per second in a test. protocol.md draws the
// rounds. One owner thread.
//
// It reads events and hands them to who decides: RequestTable (who waits, who runs), WorkerPool (which worker
// drafts for whom), DraftRounds (gamma, Propose, Draft), StepPlanner (what the target does next), Verdicts
// (what is committed).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/draft_rounds.h"
#include "coordinator/overview.h"
#include "coordinator/verdicts.h"
#include "transformer/tokenizer/tokenizer.h"

namespace outrider {

class Protocol {
 public:
  // Without a tokenizer no text is made and stop strings are refused.
  Protocol(ProtocolOptions options, GammaPolicyFactory gamma, const Tokenizer* tokenizer = nullptr);
  Protocol(const Protocol&) = delete;  // its parts refer to each other
  Protocol& operator=(const Protocol&) = delete;

  std::vector<Action> step(Event event, Clock::time_point now);
  // When to come back with a Tick at the latest, if nothing else happens.
  std::optional<Clock::time_point> next_deadline() const;

  bool has_target() const { return target_.is_here(); }
  std::optional<PeerId> target() const { return target_.peer(); }
  const Status& target_status() const { return target_status_; }  // why there is none, after one was lost
  size_t open_requests() const { return requests_.queued() + requests_.running(); }
  size_t running_requests() const { return requests_.running(); }
  int64_t queued_tokens() const { return requests_.queued_tokens(); }  // prompt tokens waiting
  size_t worker_count() const { return pool_.size(); }
  // A draft worker that was let in, or that waits for the target.
  bool has_worker(PeerId peer) const { return pool_.has(peer); }
  const Totals& totals() const { return totals_; }
  const CostModel& cost() const { return target_.costs.all(); }
  // Who runs, who drafts, and what rounds cost just now.
  Overview overview() const;
  // For tests and diagnostics; nullptr when unknown.
  const LiveRequest* find(SequenceId id) const { return requests_.find(id); }

 private:
  void on(Submit& event, Turn& turn);
  void on(Cancel& event, Turn& turn);
  void on(MessageReceived& event, Turn& turn);
  void on(PeerLost& event, Turn& turn);
  void on(SendFailed& event, Turn& turn);
  void on(Tick&, Turn&) {}

  // Where a message comes from that this role never gets.
  template <class Unexpected>
  void receive(PeerId, Unexpected&, Turn&) {
    ++totals_.unexpected_messages;
  }
  void receive(PeerId peer, Hello& message, Turn& turn);
  void receive(PeerId peer, Failure& message, Turn& turn);
  void receive(PeerId peer, Shutdown& message, Turn& turn);
  void receive(PeerId, Heartbeat&, Turn&) {}  // the loop's membership reads these
  void receive(PeerId peer, Resync& message, Turn& turn);

  void take(PeerId peer, StepResult& message, size_t frame_bytes, Turn& turn);

  void pump(Turn& turn);
  void expire(Turn& turn);
  void admit(Turn& turn);
  void assign(Turn& turn);
  void plan(Turn& turn);

  Status check_request(const Request& request) const;
  Status check_fits(LiveRequest& live) const;
  void refuse(Submit& event, Status error, Turn& turn);
  void finish(LiveRequest& live, FinishReason reason, Status error, Turn& turn);
  std::unique_ptr<GammaPolicy> make_gamma(const LiveRequest& live) const;
  void use_kind(LiveRequest& live, DrafterKind kind) const;

  void target_joined(PeerId peer, Hello& hello, Turn& turn);
  void target_lost(Status why, Turn& turn);
  void worker_joined(PeerId peer, Hello& hello, Turn& turn);
  void refuse_hello(PeerId peer, std::string reason, Turn& turn);
  std::optional<DrafterKind> forget_worker(PeerId peer, Turn& turn);
  void worker_lost(PeerId peer, Turn& turn);
  void worker_left(PeerId peer, Turn& turn);

  const ProtocolOptions options_;
  const GammaPolicyFactory gamma_;
  const Tokenizer* const tokenizer_;

  Clock::time_point now_{};                         // of the last step
  std::optional<Clock::time_point> join_deadline_;  // set while no target is there
  Status target_status_;
  Totals totals_;
  RequestTable requests_{options_};
  TargetGroup target_{options_};
  WorkerPool pool_{options_, totals_};
  DraftRounds rounds_{options_, target_, pool_, totals_};
  Verdicts verdicts_{options_, target_, pool_, rounds_.shadows(), totals_};
};

}  // namespace outrider
