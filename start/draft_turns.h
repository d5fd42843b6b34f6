// The computing thread of a draft worker that several coordinators share. Each coordinator has a session with
// a thread, a connection, a drafter and a DraftWorker of its own. A session's thread connects, joins and
// leaves, which may wait. What uses the model runs here, one piece of work at a time: whose turn it is says
// TurnOrder. So one set of threads computes, and no session waits for another's network.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <vector>

#include "comm/bell.h"
#include "comm/transport.h"
#include "draft_worker/draft_worker.h"
#include "draft_worker/turn_order.h"
#include "model/kv/kv_cache.h"

namespace outrider {

class DraftTurns {
 public:
  // A session for each weight. `kv`, divided among them, must outlive this; null: drafters without a model.
  // `now` measures pieces of work; empty: Clock::now.
  DraftTurns(const std::vector<double>& weights, KvCache* kv, std::function<Clock::time_point()> now = {});

  // The computing thread, the one that loaded the model: until every session has left. Throws what a turn
  // threw, which means that the model is broken; then serve() throws it, too.
  void run();

  // By the session's own thread:
  // Runs `body` on the computing thread as this session, between two turns, and waits for its end; throws
  // what it threw. Once the computing thread has failed, `body` runs here.
  void compute(size_t session, const std::function<void()>& body);
  // Gives turns to a worker that has joined, until it ends. The caller calls DraftWorker::finish().
  void serve(size_t session, DraftWorker& worker, const Transport& transport);
  // Its last call.
  void leave();

  bool has_failed() const;
  // The time that a session's pieces of work took. After run().
  TurnOrder::Time used(size_t session) const { return order_.used(session); }

 private:
  struct Body {
    size_t session;
    const std::function<void()>* run;
    bool done = false;
    std::exception_ptr error = {};
  };
  struct Served {
    DraftWorker* worker = nullptr;  // null: this session is not served now
    int fd = -1;
  };

  void run_bodies();
  bool take_turns();
  bool listen();
  void work(size_t session);
  Clock::time_point now() const { return clock_ ? clock_() : Clock::now(); }
  void end(size_t session);
  void sleep();
  void enter(size_t session) {
    if (kv_) kv_->use_as(session);
  }

  KvCache* const kv_;
  const std::function<Clock::time_point()> clock_;
  Bell bell_;  // rung by sessions' threads

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Body*> bodies_;
  std::vector<Served> served_;  // by session
  size_t present_;              // sessions that have not left
  std::exception_ptr failure_;

  // Only the computing thread uses these.
  TurnOrder order_;
  std::vector<Served> looked_at_;  // copy of served_
};

}  // namespace outrider
