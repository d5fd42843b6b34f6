// The open requests. RequestQueue holds the waiting ones in order (of arrival, or of priority first), and
// decides whether another may wait. RequestTable holds those of one target group: running requests, and
// finished ones that must still be closed there. Neither decides the next step of a request.
#pragma once

#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "coordinator/scheduler/live_request.h"
#include "coordinator/scheduler/protocol_options.h"

namespace outrider {

class RequestQueue {
 public:
  explicit RequestQueue(const ProtocolOptions& options) : options_(options) {}

  Status check_room(size_t prompt_tokens) const;
  LiveRequest& add(SequenceId id, Request request);
  LiveRequest* find(SequenceId id) const;  // null: it is not in the queue
  LiveRequest* first() const;              // null: the queue is empty
  std::unique_ptr<LiveRequest> take(SequenceId id);

  size_t size() const { return order_.size(); }
  int64_t tokens() const { return tokens_; }  // of their prompts

 private:
  const ProtocolOptions& options_;
  using Place = std::pair<int32_t, SequenceId>;  // ids are given in order of arrival
  Place place_of(const LiveRequest& live) const { return {options_.priority_of(live.request), live.id()}; }
  std::set<Place> order_;
  RequestMap live_;
  int64_t tokens_ = 0;
};

// Finds the requests of all target groups.
using RequestIndex = std::unordered_map<uint64_t, LiveRequest*>;  // by SequenceId

class RequestTable {
 public:
  explicit RequestTable(RequestIndex& index) : index_(index) {}
  // Adds a request that runs here from now on.
  LiveRequest& add(std::unique_ptr<LiveRequest> live);
  // The group is gone: drops finished requests, and resets the others to their committed text. Returns the
  // number of drafts in outstanding plans that wait for a draft again.
  int64_t lose_group();
  // Removes and returns a request that has not finished, which goes on in another group.
  std::unique_ptr<LiveRequest> take(SequenceId id);
  // The same from a group that has not answered its plan: a finished request stays in its place with its part
  // of the cache, until a later plan closes it.
  std::unique_ptr<LiveRequest> take_from_late(SequenceId id);
  // Removes and returns all requests.
  RequestMap take_all();
  // Null: unknown, or finished and closed.
  LiveRequest* find(SequenceId id) const;
  RequestMap& all() { return live_; }
  const RequestMap& all() const { return live_; }
  // Oldest first, so that a sequence without room in one plan leads the next one.
  std::vector<LiveRequest*> in_state(RequestState state) const;

  size_t running() const { return running_; }  // not finished
  // The sequence stays until a plan closes it on the target, because the state hash includes it.
  void finish(LiveRequest& live);
  // Removes requests that have finished and are closed.
  void sweep();

 private:
  template <class Ends>
  void forget(const Ends& ends);

  RequestIndex& index_;
  size_t running_ = 0;
  RequestMap live_;
};

}  // namespace outrider
