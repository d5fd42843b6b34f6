// The loop around the protocol machine: receive, step, send. Owns the transport. One thread; callbacks run on
// it and may submit and cancel, but not run.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <set>

#include "base/absence.h"
#include "cluster/membership.h"
#include "comm/transport.h"
#include "coordinator/protocol.h"
#include "coordinator/trace.h"

namespace outrider {

struct CoordinatorCallbacks {
  std::function<void(const Emit&)> on_emit;
  std::function<void(const Finish&)> on_finish;
  std::function<void(const RoundDone&)> on_round;
  std::function<bool()> asked_to_stop;       // looked at by run() several times a second
  std::function<Clock::time_point()> clock;  // empty: Clock::now, of which deadlines are told
};

// A draft worker reads a long prompt in silence, so its silence is judged more patiently than its heartbeat
// alone would allow; rounds do not wait for it that long. The target is judged by its step deadline.
constexpr MembershipOptions kWorkerMembership{.heartbeat_interval = std::chrono::milliseconds(5'000),
                                              .missed_heartbeats = 6};

class Coordinator {
 public:
  // `tokenizer` may be null (ids only, no stop strings) and must outlive this. `trace` may be null.
  Coordinator(std::unique_ptr<Transport> transport, ProtocolOptions options, GammaPolicyFactory gamma,
              const Tokenizer* tokenizer, CoordinatorCallbacks callbacks, Trace* trace = nullptr,
              const MembershipOptions& membership = kWorkerMembership);

  // How it ends is told by on_finish, also when it is refused.
  SequenceId submit(Request request);
  void cancel(SequenceId id);

  // Serves until every submitted request has finished, or it is asked to stop. An error is the target's end;
  // each request also learned it.
  Status run();
  // Handles what arrives until `deadline`, at most one message. For servers that have more to do.
  void poll(Clock::time_point deadline);
  // Waits for all target groups and `workers` draft workers.
  Status wait_for_peers(size_t workers, Clock::time_point deadline);
  // Who is missing for that, as "the target group"; empty: nobody.
  std::string awaited(size_t workers) const;
  // Finds out whether the target groups are still connected, where nothing was sent to it for a while; if
  // not, requests end. Not for every poll: it answers nothing, and its queue is short.
  void probe_target();
  // Tells all that take part to leave, and those inside that ever spoke.
  void shutdown();

  // Ends a poll() early, from any thread.
  std::function<void()> waker() const { return transport_->waker(); }

  const Totals& totals() const { return protocol_.totals(); }
  const Protocol& protocol() const { return protocol_; }
  const TransportStats& transport_stats() const { return transport_->stats(); }
  std::string endpoint() const { return transport_->endpoint(); }
  void fill_report(nlohmann::json& out) const;

 private:
  Clock::time_point now() const { return callbacks_.clock ? callbacks_.clock() : Clock::now(); }
  void note_absence();
  void handle(Event event);
  void perform(Action& action);
  void note_peer(PeerId peer);
  void note_sign_of_life(const Incoming& incoming);
  void note_hello(PeerId peer, Hello hello);
  void note_refusal(const Send& send);
  void note_rest(const Send& send);
  void probe_workers();
  void probe_busy_targets();
  void lose(PeerId peer, std::string why);

  std::unique_ptr<Transport> transport_;
  Protocol protocol_;
  CoordinatorCallbacks callbacks_;
  Trace* trace_;
  Membership membership_;  // of the draft workers
  Absence absence_;
  std::map<PeerId, Hello>
      hellos_;               // of members, to let one that was lost in again; bounded as the membership is
  std::deque<Event> inbox_;  // from callbacks and failed sends; empty between polls
  bool handling_ = false;
  std::set<PeerId> peers_;  // inside
  uint64_t next_id_ = 1;
  size_t submitted_ = 0, finished_ = 0;
  int refusals_ = 0;
  Clock::time_point next_probe_{};
  // Of several target groups: each is asked again after ever longer pauses.
  struct Probe {
    Clock::time_point at{};
    Clock::duration pause{};
  };
  std::map<PeerId, Probe> target_probes_;
};

}  // namespace outrider
