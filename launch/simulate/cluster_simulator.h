// The production protocol machine and policies on a simulated cluster: one target group, D drafters, links, a
// virtual clock. Everything follows from the options and their seed, bit for bit.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "cluster/simulation/arrivals.h"
#include "cluster/simulation/event_queue.h"
#include "cluster/simulation/link.h"
#include "cluster/simulation/simulated_drafter.h"
#include "cluster/simulation/simulated_target.h"
#include "coordinator/protocol.h"

namespace outrider {

struct SimulationOptions {
  PassCost target, draft;
  int32_t drafters = 1;
  LinkOptions draft_link;   // coordinator and drafters
  LinkOptions target_link;  // coordinator and leader
  int32_t max_num_seqs = 16;
  int32_t max_context = 1 << 20;
  Pipeline pipeline = Pipeline::kLockstep;
};

struct SimulationResult {
  Totals totals;
  CostModel cost;
  double seconds = 0;  // virtual, from the first arrival to the last token
  double target_busy = 0, draft_busy = 0;
  int64_t bytes = 0;  // on the drafters' links
  int64_t events = 0;
  uint64_t fingerprint = 0;  // of every round, in order: equal runs have equal ones
  double tokens_per_second() const {
    return seconds > 0 ? static_cast<double>(totals.rounds.emitted) / seconds : 0;
  }
};

// A change of the world at a time: acceptance from there on.
struct SimulationStep {
  double at_s = 0;
  AcceptanceProcess acceptance;
};

class ClusterSimulator {
 public:
  // `acceptance` and `steps` must outlive this.
  ClusterSimulator(const SimulationOptions& options, GammaPolicyFactory gamma,
                   const AcceptanceProcess& acceptance, const std::vector<SimulationStep>& steps = {});
  // Called for every round, with the virtual time of its verdict.
  void on_round(std::function<void(const RoundDone&, double)> callback) { on_round_ = std::move(callback); }
  // Until every request has finished, or `limit_s` of virtual time has passed.
  Result<SimulationResult> run(const std::vector<SimulatedRequest>& requests, double limit_s = 1e9);

 private:
  struct Drafter {
    Link to, from;
    std::unique_ptr<SimulatedDrafter> worker;
  };
  void step(Event event);
  void perform(Action& action);
  void send_to_target(const Message& message);
  Status error_;

  SimulationOptions options_;
  EventQueue events_;
  Protocol protocol_;
  SimulatedTarget target_;
  Link to_target_, from_target_;
  std::map<PeerId, Drafter> drafters_;
  std::function<void(const RoundDone&, double)> on_round_;
  SimulationResult result_;
  SimTime last_finish_ = 0;
};

}  // namespace outrider
