// The requests that are open: who waits for a place, in order, who runs, and who has finished and must still
// be closed on the target. Decides whether one more may wait; never what a request does next.
#pragma once

#include <deque>
#include <vector>

#include "coordinator/live_request.h"
#include "coordinator/protocol_options.h"

namespace outrider {

class RequestTable {
 public:
  explicit RequestTable(const ProtocolOptions& options) : options_(options) {}

  Status check_room(size_t prompt_tokens) const;
  LiveRequest& add(SequenceId id, Request request);
  // Null: unknown, or finished and closed.
  LiveRequest* find(SequenceId id) const;
  RequestMap& all() { return live_; }
  const RequestMap& all() const { return live_; }
  // Oldest first, so that a sequence that found no room in a plan leads the next one.
  std::vector<LiveRequest*> in_state(RequestState state) const;

  size_t queued() const { return queue_.size(); }
  int64_t queued_tokens() const { return queued_tokens_; }
  size_t running() const { return running_; }  // admitted and not finished
  LiveRequest* first_in_queue() const;         // null: nobody waits
  // The first of the queue begins its prefill.
  void admit_first();
  // Takes it out of the queue, or of those that run. The sequence stays until the target was told to close
  // it, because the state hash includes it.
  void finish(LiveRequest& live);
  // Forgets who has finished and is closed.
  void sweep();

 private:
  void leave_queue(LiveRequest& live);

  const ProtocolOptions& options_;
  std::deque<SequenceId> queue_;
  int64_t queued_tokens_ = 0;
  size_t running_ = 0;
  RequestMap live_;
};

}  // namespace outrider
