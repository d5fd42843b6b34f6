// One job on a clock that others may share: the production coordinator with its target groups, the draft
// workers that serve all groups, and their links.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "cluster/simulation/device_turns.h"
#include "cluster/simulation/event_queue.h"
#include "cluster/simulation/link.h"
#include "cluster/simulation/simulated_drafter.h"
#include "cluster/simulation/simulated_target.h"
#include "coordinator/protocol.h"
#include "lab/simulate/clocked_drafter.h"

namespace outrider {

struct JobOptions {
  ForwardCost target, draft;
  int32_t groups = 1;         // of the target
  int32_t drafters = 1;       // draft workers, for all groups
  LinkOptions draft_link;     // coordinator and drafters
  LinkOptions target_link;    // coordinator and leaders
  int32_t max_num_seqs = 16;  // of each group
  int32_t max_context = 1 << 20;
  int64_t kv_blocks = 0;  // of each group, for texts that begin alike too; 0: nothing is kept for others
  Pipeline pipeline = Pipeline::kLockstep;
  SimulatedGuesses guesses;  // drafts for the drafters
  int32_t fanout = 8;        // outcomes prepared for at most, per sequence
  double hidden_state_row_bytes =
      0;                       // not 0: drafters are heads, which are sent so much for a committed token
  bool in_turns = false;       // drafter i is on one of the devices of group i: either passes, or the other
  bool one_process = false;    // drafters are in the coordinator's process, whose policy asks them at once
  bool beside_target = false;  // no drafters: each leader drafts behind its passes, at the cost of `draft`
};

class SimulatedJob {
 public:
  // Actions of the protocol that the job cannot do itself: Emit, RoundDone, Finish.
  using OnAction = std::function<void(Action&)>;
  // `longest_text`: tokens of the longest request, prompt included. `events` and `acceptance` must outlive
  // this.
  SimulatedJob(EventQueue& events, const JobOptions& options, GammaPolicyFactory gamma,
               const AcceptanceProcess& acceptance, int32_t longest_text, OnAction on_action);

  void step(Event event);
  size_t open_requests() const { return protocol_.open_requests(); }
  const Protocol& protocol() const { return protocol_; }
  std::vector<double> target_busy() const;  // seconds, of each group
  double draft_busy() const;
  int64_t draft_bytes() const;

 private:
  struct Group {
    PeerId peer;
    SimulatedTarget target;
    Link to, from;
    DeviceTurns turns;
  };
  struct Drafter {
    Link to, from;
    std::unique_ptr<DrafterOnClock> worker;
  };
  void add_drafter(PeerId peer, DeviceTurns* turns, const AcceptanceProcess& acceptance,
                   int32_t longest_text);
  void send(const Send& message);
  void send_to_target(Group& group, const StepPlan& plan, size_t bytes);
  void answer(Group& group, StepResult result, SimTime at);
  void pass_in_turn(Group& group, StepResult result);
  void arm_tick();

  EventQueue& events_;
  JobOptions options_;
  Protocol protocol_;
  std::deque<Group> groups_;  // peers 1, 2, ...
  std::map<PeerId, Drafter> drafters_;
  OnAction on_action_;
  SimTime tick_at_ = INT64_MAX;  // one is scheduled for then
};

}  // namespace outrider
