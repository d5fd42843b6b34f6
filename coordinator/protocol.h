// The coordinator's decisions as a pure machine: step(event, now) -> actions. No clock, thread, socket or
// random number inside, so thousands of fault schedules run per second in a test. protocol.md draws the
// rounds. One owner thread.
//
// It passes events to the parts that decide: RequestQueue (waiting requests), TargetGroups (the group of a
// request), WorkerPool (the draft worker of a sequence), and for each target group RequestTable (running
// requests), DraftRounds (gamma, Propose, Draft), StepPlanner (the target's next pass) and Verdicts
// (commits).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/dirty_set.h"
#include "coordinator/overview.h"
#include "coordinator/prompt_handoffs.h"
#include "coordinator/target_groups.h"
#include "text/tokenizer/tokenizer.h"

namespace outrider {

class Protocol {
 public:
  // Without a tokenizer no text is made and stop strings are refused.
  Protocol(ProtocolOptions options, GammaPolicyFactory gamma, const Tokenizer* tokenizer = nullptr);
  Protocol(const Protocol&) = delete;  // its parts refer to each other
  Protocol& operator=(const Protocol&) = delete;

  std::vector<Action> step(Event event, Clock::time_point now);
  // The time of the next Tick, if no other event comes before.
  std::optional<Clock::time_point> next_deadline() const;

  bool has_target() const { return groups_.any_here(); }
  size_t targets_here() const { return groups_.count_here(); }
  size_t target_groups() const { return static_cast<size_t>(options_.target_groups); }  // that may join
  size_t groups_to_begin() const {
    return options_.groups_to_begin > 0 ? static_cast<size_t>(options_.groups_to_begin) : target_groups();
  }
  // Whether target groups are probed, so that a silent death is found before the step's deadline.
  bool is_one_process() const { return options_.one_process; }
  bool probes_targets() const { return options_.target_groups > 1 || options_.targets_join; }
  bool is_target(PeerId peer) const { return groups_.of(peer) != nullptr; }
  std::vector<PeerId> targets() const;
  const Status& target_status() const { return target_status_; }  // the reason, after all groups were lost
  size_t open_requests() const { return queue_.size() + groups_.running(); }
  size_t running_requests() const { return groups_.running(); }
  int64_t queued_tokens() const { return queue_.tokens(); }  // prompt tokens waiting
  // The next request to be admitted; null: none waits.
  const Request* next_queued() const { return queue_.first() ? &queue_.first()->request : nullptr; }
  size_t worker_count() const { return pool_.size(); }
  size_t early_workers() const { return pool_.early(); }  // workers that wait for a target group
  // Whether this is a draft worker that was admitted, or that waits for the target.
  bool has_worker(PeerId peer) const { return pool_.has(peer); }
  const Totals& totals() const { return totals_; }
  // The cost of passes of this target group.
  const CostModel& cost(int32_t group = 0) const { return groups_.at(group).target.costs.all(); }
  // Running requests, their drafters, and the present cost of rounds.
  Overview overview() const;
  // For tests and diagnostics; nullptr when unknown.
  const LiveRequest* find(SequenceId id) const;

 private:
  void on(Submit& event, Turn& turn);
  void on(Cancel& event, Turn& turn);
  void on(MessageReceived& event, Turn& turn);
  void on(PeerLost& event, Turn& turn);
  void on(SendFailed& event, Turn& turn);
  void on(Tick&, Turn&) {}
  void on(Away& event, Turn& turn);

  // Handles a message that this role never gets.
  template <class Unexpected>
  void receive(PeerId, Unexpected&, Turn&) {
    ++totals_.unexpected_messages;
  }
  bool may_speak(const MessageReceived& event, Turn& turn);
  void receive(PeerId peer, Hello& message, Turn& turn);
  void receive(PeerId peer, Failure& message, Turn& turn);
  void receive(PeerId peer, Shutdown& message, Turn& turn);
  void receive(PeerId, Heartbeat&, Turn&) {}  // the loop's membership reads these
  void receive(PeerId peer, Resync& message, Turn& turn);

  void take(PeerId peer, StepResult& message, size_t frame_bytes, Turn& turn);
  void apply(ServingGroup& group, StepResult& result, const OutstandingPlan& plan, Turn& turn);

  void pump(Turn& turn);
  template <class Look>
  void for_each_dirty(const Look& look);
  std::optional<Clock::time_point> due(const ServingGroup& group) const;
  void expire(Turn& turn);
  void admit(Turn& turn);
  void begin(ServingGroup& group, LiveRequest& live, Turn& turn);
  void assign(Turn& turn);
  void assign(ServingGroup& group, Turn& turn);
  void plan(ServingGroup& group, Turn& turn);
  void count(ServingGroup& group, const OutstandingPlan& plan, const StepPlan& step);

  Status check_request(const Request& request) const;
  Status check_fits(LiveRequest& live, const TargetGroup& target) const;
  void refuse(Submit& event, Status error, Turn& turn);
  void finish(LiveRequest& live, FinishReason reason, Status error, Turn& turn);
  std::unique_ptr<GammaPolicy> make_gamma(const LiveRequest& live) const;
  void use_kind(LiveRequest& live, DrafterKind kind) const;
  LiveRequest* live(SequenceId id) { return const_cast<LiveRequest*>(find(id)); }
  ServingGroup& group_of(SequenceId id);
  void mark_dirty(const ServingGroup& group) { dirty_.mark_dirty(group.target.index); }
  Clock::duration draft_timeout() const;

  void target_joined(PeerId peer, Hello& hello, Turn& turn);
  void target_lost(ServingGroup& group, Status why, Turn& turn,
                   MemberChange::Kind kind = MemberChange::Kind::kLost);
  void hand_over(ServingGroup& lost, Status why, Turn& turn);
  int64_t move_requests(ServingGroup& lost);
  void wait_for_group(ServingGroup& lost, Status why, Turn& turn);
  void end_all(Status why, Turn& turn);
  void worker_joined(PeerId peer, Hello& hello, Turn& turn);
  void refuse_hello(PeerId peer, std::string reason, Turn& turn);
  std::optional<DrafterKind> forget_worker(PeerId peer, Turn& turn);
  void worker_lost(PeerId peer, std::string why, Turn& turn);
  void worker_left(PeerId peer, Turn& turn);
  void unload_workers(Turn& turn);

  const ProtocolOptions options_;
  const GammaPolicyFactory gamma_;
  const Tokenizer* const tokenizer_;

  Clock::time_point now_{};                         // of the last step
  std::optional<Clock::time_point> join_deadline_;  // set while no target is there
  Status lost_;                                     // the reason, while requests wait for another group
  Status target_status_;
  Totals totals_;
  RequestQueue queue_{options_};
  WorkerPool pool_{options_, totals_};
  TargetGroups groups_{options_, pool_, totals_};
  PromptHandoffs handoffs_{options_, groups_, totals_};
  DirtySet dirty_;
};

}  // namespace outrider
