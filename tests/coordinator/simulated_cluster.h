// The production protocol machine and draft workers, and toy target groups, under one event queue and a
// virtual clock. Everything, faults included, follows from the seed.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "coordinator/protocol.h"
#include "drafting_worker.h"
#include "faults.h"
#include "simulated_ranks.h"
#include "toy_target.h"
#include "virtual_network.h"

namespace outrider {

struct SimulatedRequest {
  Request request;
  int64_t submit_at_us = 0;
};

struct SimulatedOutcome {
  std::vector<TokenId> ids;
  std::string text;
  size_t prompt_scores = 0;
  int finishes = 0;
  Finish finish;
  bool cancel_sent = false;
};

class SimulatedCluster {
 public:
  // `ranks`: ranks of a single target with endpoints for slices of dense q. `kv_blocks`: size of each
  // target's cache; 0: enough for all sequences. The number of targets is options.target_groups.
  // `hidden_states`: drafters need hidden states of the targets.
  SimulatedCluster(uint64_t seed, ProtocolOptions options, GammaPolicyFactory gamma, Faults faults,
                   int workers, double accuracy, int ranks = 0, int64_t kv_blocks = 0,
                   bool hidden_states = false);
  // Call before run(). Targets draft too, with a draft head that the workers also have. `pass_us`: duration
  // of a forward pass; 0: a random delay like those of links. `draft_us`: duration of the draft after it.
  void draft_at_targets(int64_t pass_us, int64_t draft_us) {
    drafts_at_targets_ = true;
    pass_us_ = pass_us;
    draft_us_ = draft_us;
  }
  // Until every request has finished, then until the wire is quiet. False: it did not end within bounds.
  bool run(std::vector<SimulatedRequest> requests);

  const std::map<SequenceId, SimulatedOutcome>& outcomes() const { return outcomes_; }
  const Protocol& protocol() const { return protocol_; }
  const SimulatedRanks& ranks() const { return ranks_; }
  // The first violation that any target saw; sequences that living ones still have; what all took from
  // prefixes.
  std::string target_error() const;
  size_t sequences_at_targets() const;
  int64_t prefix_tokens() const;
  int64_t told() const;  // rows of hidden states that living targets told
  bool target_failed() const { return struck_.target_failure > 0; }
  bool all_targets_failed() const { return all_targets_failed_; }  // at one time
  const FaultCounts& struck() const { return struck_; }
  const FaultCounts& slices_struck() const { return slices_struck_; }
  size_t sequences_at_workers() const;
  const std::string& worker_error() const { return worker_error_; }  // of the first violation of any
  int64_t virtual_us() const { return network_.now_us(); }

 private:
  bool chance(double p) { return std::uniform_real_distribution<>()(random_) < p; }
  bool strikes(double p, int64_t& count) {
    const bool yes = chance(p);
    count += yes;
    return yes;
  }
  int64_t delay_us() { return std::uniform_int_distribution<int64_t>(1, faults_.max_delay_us)(random_); }
  void carry(VirtualNetwork::Link link, std::function<void()> arrives);
  void step(Event event);
  void perform(Action& action);
  struct Target;
  Target* target_of(PeerId peer);
  void target_joins(Target& target, PeerId peer);
  void target_dies(Target& target);
  void send_to_target(Target& target, const Message& message);
  void begin_step(Target& target, const StepPlan& plan);
  void try_verify(Target& target);
  void send_blocks(ToyTarget::Blocks blocks);
  Status send_slice(PeerId peer, int rank, const QSlice& slice);
  void send_to_worker(PeerId peer, Message& message);
  void send_from_worker(PeerId peer, Message message);
  void worker_joins(PeerId peer);
  void schedule_work(PeerId peer);
  void worker_works(PeerId peer, uint64_t life);
  void send_replies(PeerId peer);
  void worker_dies(PeerId peer);

  std::mt19937_64 random_;
  VirtualNetwork network_;
  Faults faults_;
  FaultCounts struck_, slices_struck_;
  double accuracy_;
  const bool hidden_states_;
  bool drafts_at_targets_ = false;
  int64_t pass_us_ = 0, draft_us_ = 0;
  Protocol protocol_;
  struct Verification {  // of a plan, once the forward pass is over
    StepPlan plan;
    int64_t from_us, until_us;  // waits for slices no longer
  };
  struct Target {
    PeerId peer;
    std::unique_ptr<ToyTarget> target;  // of this life
    std::optional<Verification> verification;
    bool failed = true;         // until it was welcomed
    std::string error;          // of earlier lives
    int64_t prefix_tokens = 0;  // the same
  };
  const int32_t max_rows_, places_;
  const int64_t kv_blocks_;
  const int32_t prefill_groups_;
  std::vector<Target> targets_;
  SimulatedRanks ranks_;
  std::set<Generation> cut_off_;  // workers of which slices were lost
  struct Worker {
    DraftingWorker worker;
    uint64_t life;
    bool scheduled = false;
  };
  std::map<PeerId, Worker> workers_;
  std::string worker_error_;
  int64_t clock_calls_ = 0;  // time must pass for a worker that measures it
  std::map<SequenceId, SimulatedOutcome> outcomes_;
  uint64_t next_peer_ = 100, generation_ = 1;
  bool all_targets_failed_ = false;
};

}  // namespace outrider
