// The production protocol machine, policies and draft workers on simulated clusters with a virtual clock:
// target groups, each with a coordinator and D drafters of its own, that share the arriving requests.
// Everything follows from the options and their seed, bit for bit.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cluster/simulation/arrivals.h"
#include "cluster/simulation/event_queue.h"
#include "lab/simulate/simulated_group.h"

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

class ClusterSimulator {
 public:
  // `acceptance` must outlive this.
  ClusterSimulator(SimulationOptions options, const AcceptanceProcess& acceptance)
      : options_(std::move(options)), acceptance_(acceptance) {}
  // Until every request has finished, within bounds of events and virtual time. Once.
  Result<SimulationResult> run(const Arrivals& arrivals);

 private:
  Status make_groups();
  void await_arrivals();
  // Request `index` arrives at this time.
  void submit_at(SimTime when, size_t index);
  void submit(SequenceId id, const SimulatedRequest& asked);
  void perform(Action& action);

  SimulationOptions options_;
  const AcceptanceProcess& acceptance_;
  EventQueue events_;
  std::vector<std::unique_ptr<SimulatedGroup>> groups_;
  SimulationResult result_;
  Status error_;
  const Arrivals* arrivals_ = nullptr;
  size_t next_ = 0;  // of a closed loop: the request that comes next
  size_t finished_ = 0;
  SimTime last_finish_ = 0;
};

}  // namespace outrider
