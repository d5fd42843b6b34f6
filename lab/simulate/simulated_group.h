// One target group with its coordinator, its drafters and their links, on a clock that others may share.
#pragma once

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

struct GroupOptions {
  ForwardCost target, draft;
  int32_t drafters = 1;
  LinkOptions draft_link;   // coordinator and drafters
  LinkOptions target_link;  // coordinator and leader
  int32_t max_num_seqs = 16;
  int32_t max_context = 1 << 20;
  Pipeline pipeline = Pipeline::kLockstep;
  SimulatedGuesses guesses;    // drafts for the drafters
  int32_t fanout = 8;          // outcomes prepared for at most, per sequence
  double state_row_bytes = 0;  // not 0: drafters are heads, which are sent so much for a committed token
  bool in_turns = false;       // drafters are on the target's devices, each on one: either passes, or they do
};

class SimulatedGroup {
 public:
  // What the protocol wants done and the group cannot do itself: Emit, RoundDone, Finish.
  using OnAction = std::function<void(Action&)>;
  // `longest_text`: tokens of the longest request, prompt included. `events` and `acceptance` must outlive
  // this.
  SimulatedGroup(EventQueue& events, const GroupOptions& options, GammaPolicyFactory gamma,
                 const AcceptanceProcess& acceptance, int32_t longest_text, OnAction on_action);

  void step(Event event);
  size_t open_requests() const { return protocol_.open_requests(); }
  const Protocol& protocol() const { return protocol_; }
  double target_busy() const { return target_.busy_seconds(); }
  double draft_busy() const;
  int64_t draft_bytes() const;

 private:
  struct Drafter {
    Link to, from;
    std::unique_ptr<DrafterOnClock> worker;
  };
  void add_drafter(PeerId peer, const AcceptanceProcess& acceptance, int32_t longest_text);
  void send(const Send& message);
  void send_to_target(const StepPlan& plan, size_t bytes);
  void pass_in_turn(StepResult result);
  void arm_tick();

  EventQueue& events_;
  GroupOptions options_;
  Protocol protocol_;
  SimulatedTarget target_;
  DeviceTurns turns_;
  Link to_target_, from_target_;
  std::map<PeerId, Drafter> drafters_;
  OnAction on_action_;
  SimTime tick_at_ = INT64_MAX;  // one is scheduled for then
};

}  // namespace outrider
