// The production protocol machine and draft workers, and a toy target, under one event queue and a virtual
// clock. Everything, faults included, follows from the seed.
#pragma once

#include <map>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "coordinator/protocol.h"
#include "drafting_worker.h"
#include "simulated_ranks.h"

namespace outrider {

// Replays StepPlans as the messages define them and refuses whatever a target rank would call a bug.
class ToyTarget {
 public:
  explicit ToyTarget(int32_t max_rows) : max_rows_(max_rows) {}
  // `lost`: whose drafts are given up, because a rank misses its slices of q.
  StepResult handle(const StepPlan& plan, const std::set<SequenceId>& lost = {});
  size_t open_sequences() const { return sequences_.size(); }
  const std::string& error() const { return error_; }  // of the first violation
  double nonfinite_chance = 0;
  std::mt19937_64* random = nullptr;

 private:
  struct Held {
    std::vector<TokenId> ids;
    int32_t kv_length = 0;
    Epoch epoch;
    int64_t last_round = -1;
    SamplingParams sampling;
  };
  void check(bool condition, const char* what);
  void handle_entry(const PlanEntry& entry, bool lost, StepResult* result);

  int32_t max_rows_;
  uint64_t next_step_ = 0;
  std::map<SequenceId, Held> sequences_;
  std::string error_;
};

// Drafts from the toy model, right with the given chance.
class ToyWorker {
 public:
  ToyWorker(double accuracy, std::mt19937_64* random) : accuracy_(accuracy), random_(random) {}
  std::vector<Message> handle(const Message& message);
  size_t open_sequences() const { return sequences_.size(); }

 private:
  struct Held {
    std::vector<TokenId> ids;
    int32_t prompt_length = 0;
  };
  std::vector<Message> propose(const Propose& message);

  double accuracy_;
  std::mt19937_64* random_;
  std::map<SequenceId, Held> sequences_;
};

// Of slices on their way to the target's ranks.
struct SliceFaults {
  double drop = 0, duplicate = 0, corrupt = 0, refuse_send = 0;
  int64_t max_delay_us = 200;
  bool reorder = false;
  int only_rank = -1;  // the others get everything at once; -1: all ranks are alike
};

struct Faults {
  double drop = 0, duplicate = 0, corrupt = 0, refuse_send = 0;  // per message on a worker's link
  int64_t max_delay_us = 200;                                    // uniform
  bool reorder = false;                                          // else each direction of a link is ordered
  double worker_death = 0;                                       // per draft
  bool silent_death = false;                                     // the coordinator is not told
  double nonfinite = 0;                                          // per verdict
  double target_failure = 0;                                     // per step
  double cancel = 0;                                             // per emission
  SliceFaults slices;
};

struct SimulatedRequest {
  Request request;
  int64_t submit_at_us = 0;
};

struct SimulatedOutcome {
  std::vector<TokenId> ids;
  std::string text;
  int finishes = 0;
  Finish finish;
  bool cancel_sent = false;
};

class SimulatedCluster {
 public:
  // `ranks` of the target have doors for slices of dense q.
  SimulatedCluster(uint64_t seed, ProtocolOptions options, GammaPolicyFactory gamma, Faults faults,
                   int workers, double accuracy, int ranks = 0);
  // Until every request has finished, then until the wire is quiet. False: it did not end within bounds.
  bool run(std::vector<SimulatedRequest> requests);

  const std::map<SequenceId, SimulatedOutcome>& outcomes() const { return outcomes_; }
  const Protocol& protocol() const { return protocol_; }
  const ToyTarget& target() const { return target_; }
  const SimulatedRanks& ranks() const { return ranks_; }
  bool target_failed() const { return target_failed_; }
  size_t sequences_at_workers() const;
  const std::string& worker_error() const { return worker_error_; }  // of the first violation of any
  int64_t virtual_us() const { return now_us_; }

 private:
  struct Arrival {
    int64_t at_us;
    uint64_t order;
    std::function<void()> deliver;
    bool operator>(const Arrival& other) const {
      return std::tie(at_us, order) > std::tie(other.at_us, other.order);
    }
  };
  void after(int64_t delay_us, std::function<void()> deliver);
  bool chance(double p) { return std::uniform_real_distribution<>()(random_) < p; }
  int64_t delay_us() { return std::uniform_int_distribution<int64_t>(1, faults_.max_delay_us)(random_); }
  // On the link with `peer`, towards it or from it.
  void on_link(PeerId peer, bool towards, std::function<void()> deliver);
  void arrive_at(std::pair<PeerId, int> link, int64_t max_delay_us, bool reorder,
                 std::function<void()> deliver);
  void step(Event event);
  void perform(Action& action);
  void begin_step(const StepPlan& plan);
  void try_verify();
  Status send_slice(PeerId peer, int rank, const QSlice& slice);
  void corrupt(QSlice* slice);
  void send_to_worker(PeerId peer, Message& message);
  void send_from_worker(PeerId peer, Message message);
  void worker_joins(PeerId peer);
  void schedule_work(PeerId peer);
  void worker_works(PeerId peer, uint64_t life);
  void send_replies(PeerId peer);
  void worker_dies(PeerId peer);
  void corrupt(Draft* draft);

  std::mt19937_64 random_;
  Faults faults_;
  double accuracy_;
  Protocol protocol_;
  ToyTarget target_;
  SimulatedRanks ranks_;
  struct Verification {  // of a plan, once the forward pass is over
    StepPlan plan;
    int64_t from_us, until_us;  // waits for slices no longer
  };
  std::optional<Verification> verification_;
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
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> arrivals_;
  uint64_t order_ = 0, next_peer_ = 100, generation_ = 1;
  int64_t now_us_ = 0;
  std::map<std::pair<PeerId, int>, int64_t> last_us_;  // by peer and direction: latest arrival so far
  bool target_failed_ = false;
};

}  // namespace outrider
