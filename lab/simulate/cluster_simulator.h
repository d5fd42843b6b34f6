// The production protocol machine, policies and draft workers on simulated clusters with a virtual clock: a
// coordinator that shares the arriving requests among its target groups, or several such jobs side by side.
// Everything follows from the options and their seed, bit for bit.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cluster/simulation/arrivals.h"
#include "cluster/simulation/event_queue.h"
#include "lab/simulate/simulated_job.h"

namespace outrider {

// How prompts begin: the first `tokens` of each are those of one of `kinds` beginnings, drawn by the seed,
// and no two prompts go on alike. 0 tokens: whatever prompts are, nothing is kept of one for another.
struct SharedPrefixes {
  int32_t tokens = 0, kinds = 1;
  uint64_t seed = 1;
};

struct SimulationOptions {
  JobOptions job;
  int32_t jobs = 1;  // alike; a request goes to the one with the fewest open ones
  std::string gamma_policy = "ewma";
  SharedPrefixes prefixes;
};

struct SimulationResult {
  Totals totals;
  CostModel cost;                   // of the first group
  double seconds = 0;               // virtual, from the first arrival to the last token
  std::vector<double> target_busy;  // seconds of each group, job by job
  double draft_busy = 0;            // summed over drafters
  int64_t bytes = 0;                // on the drafters' links
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
  Status make_jobs();
  void await_arrivals();
  // Request `index` arrives at this time.
  void submit_at(SimTime when, size_t index);
  void submit(SequenceId id, const SimulatedRequest& asked);
  std::vector<TokenId> prompt_of(SequenceId id, const SimulatedRequest& asked) const;
  void perform(Action& action);

  SimulationOptions options_;
  const AcceptanceProcess& acceptance_;
  EventQueue events_;
  std::vector<std::unique_ptr<SimulatedJob>> jobs_;
  SimulationResult result_;
  Status error_;
  const Arrivals* arrivals_ = nullptr;
  size_t next_ = 0;  // of a closed loop: the request that comes next
  size_t finished_ = 0;
  SimTime last_finish_ = 0;
};

}  // namespace outrider
