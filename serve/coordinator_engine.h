// The engine over a coordinator. Whoever's thread calls serve() is the engine's until that returns.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "coordinator/coordinator.h"
#include "serve/engine.h"
#include "serve/fair_queue.h"

namespace outrider {

struct EngineLimits {
  int64_t max_num_seqs = 8;  // decoded together: so many never wait
  int64_t max_queued_requests = 128;
  int64_t max_queued_tokens = int64_t{1} << 20;  // of prompts that wait
  // An engine that holds requests and did nothing for so long hangs, and is well again when it moves. Passes
  // may run on its thread: one that ever took long gives others twice its time. A target with a thread of
  // its own is given up sooner (ProtocolOptions::step_timeout_min).
  std::chrono::milliseconds stall_limit{120'000};
  std::chrono::milliseconds look_up{200};  // asked_to_drain is looked at at least so often
  bool by_priority = false;                // who waits is served by Request::priority, and in turns only then
  // Target groups join: when there is none left requests are refused until one comes, and the engine goes on.
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
  // What is waited for before serve() is called, for those who ask.
  void wait_for(std::string who) { become(EngineState::kLoading, std::move(who)); }
  // Takes requests until `asked_to_drain`, which is called here. Then those that are open are finished, or
  // cancelled after `drain_limit`. An error: the target group is gone, and every request was told.
  Status serve(Coordinator& coordinator, const std::function<bool()>& asked_to_drain,
               std::chrono::milliseconds drain_limit);

 private:
  struct Handover {
    Ticket ticket{};
    Request request;
    std::shared_ptr<RequestSink> sink;  // null: cancelled
  };
  // Those of one call that wait.
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
  void note_progress(int64_t finished = 0);
  EngineStatus status_now() const;
  Status check_room(const Load& more) const;
  bool has_room(const Load& all) const;

  const EngineLimits limits_;

  // The engine's thread only.
  Coordinator* coordinator_ = nullptr;  // while it serves
  std::unordered_map<SequenceId, OpenRequest> requests_;
  uint64_t started_ = 0;

  mutable std::mutex mutex_;  // guards what follows; nothing is called with it but `wake_`
  std::function<void()> wake_;
  EngineState state_ = EngineState::kLoading;
  std::string reason_;
  uint64_t last_ticket_ = 0;
  std::map<int32_t, FairQueue<Group>> waiting_;     // for the coordinator, by priority
  std::vector<std::shared_ptr<RequestSink>> gone_;  // cancelled while they waited, and not told yet
  int64_t gone_count_ = 0;                          // and told
  std::vector<Ticket> cancelled_;
  int64_t open_ = 0;           // handed over and not finished
  int64_t handed_tokens_ = 0;  // of prompts that the coordinator has not seen
  int64_t queued_tokens_ = 0;  // of prompts that wait in the coordinator
  EngineNumbers numbers_;      // a moment old
  Clock::time_point counted_at_{}, moved_at_{};
  Clock::duration longest_turn_{0};
  Clock::time_point finished_at_{};
  double finish_seconds_ = 0;  // between two requests that finish, about; 0: none has
  PaceKeeper pace_;
};

}  // namespace outrider
