// The connected draft workers, and the worker of each sequence. Decides which workers are admitted, which are
// left alone for a while, and which worker suits a sequence best; never decides the length or the use of a
// draft. Sends workers only Open and Close.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/rounds/pool_worker.h"
#include "coordinator/rounds/turn.h"
#include "coordinator/scheduler/live_request.h"
#include "coordinator/scheduler/protocol_options.h"
#include "text/tokenizer/tokenizer.h"

namespace outrider {

class WorkerPool {
 public:
  WorkerPool(const ProtocolOptions& options, Totals& totals) : options_(options), totals_(totals) {}

  // ---- membership
  // Keeps a worker that said Hello before the target, until the target's vocabulary is known. False: there
  // are too many.
  bool keep_early(PeerId peer, Hello& hello);
  std::map<PeerId, Hello> take_early() { return std::exchange(early_, {}); }
  // `tokenizer`: the target's; null: vocabularies must be equal.
  static Status check(const Hello& hello, const ModelInfo& target, const Tokenizer* tokenizer);
  void join(PeerId peer, Hello hello, DrafterKind kind);
  // Removes a worker; returns its kind, if it was one.
  std::optional<DrafterKind> remove(PeerId peer);
  size_t size() const { return workers_.size(); }
  size_t early() const { return early_.size(); }
  bool is_full() const;
  bool has(PeerId peer) const { return workers_.contains(peer) || early_.contains(peer); }
  PoolWorker* find(PeerId peer);
  // Workers whose drafts have not paid for long (ProtocolOptions::unload_after), and the pause of each: four
  // times unload_after at first, then twice the last pause of a worker of its kind.
  std::vector<std::pair<PeerId, std::chrono::milliseconds>> useless(Clock::time_point now);
  template <class Use>
  void for_each(const Use& use) const {
    for (const auto& [peer, worker] : workers_) use(peer, worker);
  }
  // Visits every worker with this generation. Generations are random numbers, which a hostile worker may
  // repeat.
  template <class Use>
  void for_each_of(Generation generation, const Use& use) {
    for (auto [at, end] = lives_.equal_range(generation); at != end; ++at) use(workers_.at(at->second));
  }
  // The sequence's worker; null: none.
  PoolWorker* of(const LiveRequest& live) { return live.link.peer ? find(*live.link.peer) : nullptr; }
  const PoolWorker* of(const LiveRequest& live) const {
    const auto at = live.link.peer ? workers_.find(*live.link.peer) : workers_.end();
    return at == workers_.end() ? nullptr : &at->second;
  }
  // The sequence's worker, if it could draft now; else null.
  const PoolWorker* drafter_of(const LiveRequest& live, Clock::time_point now) const {
    const PoolWorker* worker = of(live);
    return worker && live.link.opened && worker->is_usable(now) ? worker : nullptr;
  }

  // ---- assignment
  // Computes the loads of all workers. True: a worker's load, presence or speed has changed since the last
  // call. Otherwise assigned sequences stay where they are.
  bool weigh(Clock::time_point now);
  // Between rounds: gives the sequence to another worker if that is better. True: the kind of worker may have
  // changed, and with it the state of a draft length policy.
  bool assign(LiveRequest& live, Turn& turn);
  // Also for a sequence the worker already has: Open starts it afresh.
  void open(LiveRequest& live, Turn& turn);
  void close(LiveRequest& live, Turn& turn);
  // A verified round of this kind, of any sequence.
  void add_goodput(DrafterKind kind, int32_t emitted, double seconds) {
    goodput_[kind].add(emitted, seconds);
  }

  // ---- back-off
  void missed(PoolWorker& worker, Clock::duration waited, Clock::time_point now) {
    worker.missed(waited, options_.max_back_off, now);
  }
  // Notes that a message to this worker is still unsent.
  void owes(PeerId peer) { untold_.insert(peer); }
  bool owes_any() const { return !untold_.empty(); }
  // Sends workers the messages that were held back while they were left alone.
  void resume(RequestMap& requests, Turn& turn);
  // Marks the end of a pass over all groups' requests.
  void resumed(Clock::time_point now);
  // Calls `consider` with every time at which resume() has something to do.
  template <class Consider>
  void for_each_resumption(const RequestMap& requests, Consider consider) const {
    for (const PeerId peer : untold_)
      if (const auto at = workers_.find(peer);
          at != workers_.end() && has_to_be_told(peer, at->second, requests))
        consider(at->second.usable_at());
  }

 private:
  using Member = std::pair<const PeerId, PoolWorker>;
  // The properties of a worker that decide an assignment, apart from the sequence.
  struct Weight {
    Member* member = nullptr;
    DrafterKind kind = 0;
    int32_t held = 0;
    bool usable = false, has_room = false;
    double slowness = 1;  // times slower than the fastest of its kind, if that is certain; else 1
    bool operator==(const Weight&) const = default;
    // The load if this sequence were assigned here. The current worker gets a bonus of half a sequence, so
    // that sequences do not move back and forth.
    double load(bool has_it) const { return (held + (has_it ? -0.5 : 1)) * slowness; }
  };
  Member* best_for(LiveRequest& live);
  bool keeps(const LiveRequest& live) const;
  double slowness(const PoolWorker& worker, Clock::time_point now) const;
  static bool has_to_be_told(PeerId peer, const PoolWorker& worker, const RequestMap& requests);

  const ProtocolOptions& options_;
  Totals& totals_;
  std::map<PeerId, PoolWorker> workers_;
  std::map<PeerId, Hello> early_;                                   // bounded
  GoodputByKind goodput_;                                           // of all sequences
  std::map<DrafterKind, std::chrono::milliseconds> unload_pauses_;  // the last of each kind
  std::multimap<Generation, PeerId> lives_;
  std::set<PeerId> untold_;
  std::vector<Weight> weights_;  // as last weighed, in the order of the workers
  bool moved_ = false;           // a sequence was assigned since they were weighed
  double lightest_ = 0;          // the lowest load, where a sequence would best move
  bool one_kind_ = true;
  std::vector<std::pair<DrafterKind, double>> fastest_;  // ns a token, by kind
  std::vector<const Weight*> candidates_;                // scratch, as the next
  std::vector<DrafterKind> kinds_here_;
};

}  // namespace outrider
