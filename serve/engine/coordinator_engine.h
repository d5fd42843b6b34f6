// An engine on top of a coordinator. The thread that calls serve() is the engine's thread until it returns.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/fair_queue.h"
#include "coordinator/coordinator.h"
#include "serve/engine/engine.h"
#include "serve/engine/steady_count.h"

namespace outrider {

struct EngineLimits {
  int64_t max_num_seqs = 8;  // decoded together; this many requests never wait
  int64_t max_queued_requests = 128;
  int64_t max_queued_tokens = int64_t{1} << 20;  // of prompts that wait
  // An engine that holds requests and makes no progress for this long counts as hung, until it moves again.
  // Passes may run on its thread: after a long pass the limit is twice its time. A target with a thread of
  // its own is given up sooner (ProtocolOptions::step_timeout_min).
  std::chrono::milliseconds stall_limit{120'000};
  std::chrono::milliseconds look_up{200};  // longest interval between polls of asked_to_drain
  bool by_priority = false;                // waiting requests are ordered by Request::priority, then by turns
  // Target groups join: while there is none, requests are refused, and the engine keeps running.
  bool outlives_targets = false;
};

class CoordinatorEngine final : public Engine {
 public:
  explicit CoordinatorEngine(const EngineLimits& limits) : limits_(limits) {}

  using Engine::submit_all;
  Result<std::vector<Ticket>> submit_all(std::vector<Submission> submissions,
                                         const std::string& client) override;
  void cancel(Ticket ticket) override;
  EngineStatus status() const override;
  std::chrono::seconds retry_after() const override;
  EngineNumbers numbers() const override;

  // For the one coordinator that this engine will serve.
  CoordinatorCallbacks callbacks();
  // Sets the reason of waiting before serve() is called, for status requests.
  void wait_for(std::string who) { become(EngineState::kLoading, std::move(who)); }
  // Takes requests until `asked_to_drain`, which is called here. Then finishes open requests, or cancels them
  // after `drain_limit`. An error: the target group is gone, and every request got the error.
  Status serve(Coordinator& coordinator, const std::function<bool()>& asked_to_drain,
               std::chrono::milliseconds drain_limit);

 private:
  struct Handover {
    Ticket ticket{};
    Request request;
    std::shared_ptr<RequestSink> sink;  // null: cancelled
  };
  // Waiting requests of one call.
  struct Group {
    std::string client;
    std::deque<Handover> waiting;
  };
  struct OpenRequest {
    Ticket ticket{};
    std::shared_ptr<RequestSink> sink;
  };

  struct Load {
    int64_t requests = 0, prompt_tokens = 0;
  };

  void begin(Coordinator& coordinator);
  void become(EngineState state, std::string reason = {});
  void follow_target(const Status& target);
  void take_over();
  std::optional<Handover> next_waiting();
  bool is_place_near() const;
  bool is_next_overtaken() const;
  void start(Handover& handover);
  void cancel_now(Ticket ticket);
  void cancel_all();
  void tell_gone();
  bool is_idle() const;
  void on_finish(const Finish& finish);
  void on_round(const RoundDone& round);
  void note_progress(int64_t finished = 0);
  EngineStatus status_now() const;
  Status check_room(const Load& more) const;
  bool has_room(const Load& all) const;

  const EngineLimits limits_;

  // The engine's thread only.
  Coordinator* coordinator_ = nullptr;  // while it serves
  std::unordered_map<SequenceId, OpenRequest> requests_;
  uint64_t started_ = 0;

  mutable std::mutex mutex_;  // guards the following members; only `wake_` is called while it is held
  std::function<void()> wake_;
  EngineState state_ = EngineState::kLoading;
  std::string reason_;
  uint64_t last_ticket_ = 0;
  std::map<int32_t, FairQueue<Group>> waiting_;     // for the coordinator, by priority
  std::vector<std::shared_ptr<RequestSink>> gone_;  // cancelled while waiting; sinks not yet called
  int64_t gone_count_ = 0;                          // and those whose sinks were called
  std::vector<Ticket> cancelled_;
  int64_t open_ = 0;           // submitted and unfinished
  int64_t handed_tokens_ = 0;  // of prompts not yet passed to the coordinator
  int64_t queued_tokens_ = 0;  // of prompts that wait in the coordinator
  EngineNumbers numbers_;      // a recent copy
  Clock::time_point counted_at_{}, moved_at_{};
  Clock::duration longest_turn_{0};
  Clock::time_point finished_at_{};
  double finish_seconds_ = 0;  // average time between two finished requests; 0: none has finished
  PaceKeeper pace_;
  SteadyCount workers_wanted_;
  int64_t wanted_by_last_batch_ = 0;  // between two requests of a client nothing decodes
};

}  // namespace outrider
