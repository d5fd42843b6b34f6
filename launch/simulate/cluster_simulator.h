// The production protocol machine, policies and draft workers on simulated clusters with a virtual clock:
// target groups, each with a coordinator and D drafters of its own, that share the arriving requests.
// Everything follows from the options and their seed, bit for bit.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cluster/simulation/arrivals.h"
#include "cluster/simulation/event_queue.h"
#include "launch/simulate/simulated_group.h"

namespace outrider {

struct SimulationOptions {
  GroupOptions group;
  int32_t groups = 1;
  std::string gamma_policy = "ewma";
};

struct SimulationResult {
  Totals totals;
  CostModel cost;                          // of the first group
  double seconds = 0;                      // virtual, from the first arrival to the last token
  double target_busy = 0, draft_busy = 0;  // summed over groups and drafters
  int64_t bytes = 0;                       // on the drafters' links
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
  ClusterSimulator(SimulationOptions options, const AcceptanceProcess& acceptance,
                   const std::vector<SimulationStep>& steps = {})
      : options_(std::move(options)), acceptance_(acceptance), steps_(steps) {}
  // Called for every round, with the virtual time of its verdict.
  void on_round(std::function<void(const RoundDone&, double)> callback) { on_round_ = std::move(callback); }
  // Until every request has finished, or `limit_s` of virtual time has passed. Once.
  Result<SimulationResult> run(const std::vector<SimulatedRequest>& requests, double limit_s = 1e9);

 private:
  Status make_groups(const std::vector<SimulatedRequest>& requests);
  void submit(SequenceId id, const SimulatedRequest& asked);
  void perform(Action& action);

  SimulationOptions options_;
  const AcceptanceProcess& acceptance_;
  const std::vector<SimulationStep>& steps_;
  EventQueue events_;
  std::vector<std::unique_ptr<SimulatedGroup>> groups_;
  std::function<void(const RoundDone&, double)> on_round_;
  SimulationResult result_;
  Status error_;
  size_t finished_ = 0;
  SimTime last_finish_ = 0;
};

}  // namespace outrider
