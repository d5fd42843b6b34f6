// The requests that are open. RequestQueue has those that wait for a place, in order (as they came, or by
// priority first), and decides whether one
// more may wait; RequestTable those of one target group: who runs, and who has finished and must still be
// closed there. Neither decides what a request does next.
#pragma once

#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "coordinator/live_request.h"
#include "coordinator/protocol_options.h"

namespace outrider {

class RequestQueue {
 public:
  explicit RequestQueue(const ProtocolOptions& options) : options_(options) {}

  Status check_room(size_t prompt_tokens) const;
  LiveRequest& add(SequenceId id, Request request);
  LiveRequest* find(SequenceId id) const;  // null: it does not wait
  LiveRequest* first() const;              // null: nobody waits
  std::unique_ptr<LiveRequest> take(SequenceId id);

  size_t size() const { return order_.size(); }
  int64_t tokens() const { return tokens_; }  // of their prompts

 private:
  const ProtocolOptions& options_;
  using Place = std::pair<int32_t, SequenceId>;  // ids are given as requests come
  Place place_of(const LiveRequest& live) const { return {options_.priority_of(live.request), live.id()}; }
  std::set<Place> order_;
  RequestMap live_;
  int64_t tokens_ = 0;
};

// Where to find the requests of all target groups.
using RequestIndex = std::unordered_map<uint64_t, LiveRequest*>;  // by SequenceId

class RequestTable {
 public:
  explicit RequestTable(RequestIndex& index) : index_(index) {}
  // From now on it runs here.
  LiveRequest& add(std::unique_ptr<LiveRequest> live);
  // The group is gone: who has finished is forgotten, and the others begin from what was committed. Returns
  // how many drafts of plans that were out wait for one again.
  int64_t lose_group();
  // All of them leave.
  RequestMap take_all();
  // Null: unknown, or finished and closed.
  LiveRequest* find(SequenceId id) const;
  RequestMap& all() { return live_; }
  const RequestMap& all() const { return live_; }
  // Oldest first, so that a sequence that found no room in a plan leads the next one.
  std::vector<LiveRequest*> in_state(RequestState state) const;

  size_t running() const { return running_; }  // not finished
  // The sequence stays until the target was told to close it, because the state hash includes it.
  void finish(LiveRequest& live);
  // Forgets who has finished and is closed.
  void sweep();

 private:
  template <class Ends>
  void forget(const Ends& ends);

  RequestIndex& index_;
  size_t running_ = 0;
  RequestMap live_;
};

}  // namespace outrider
