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
#include "base/event_log.h"
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
  std::function<Clock::time_point()> clock;  // empty: Clock::now; the time base of all deadlines
};

// A draft worker sends nothing while it prefills a long prompt, so its silence is tolerated longer than its
// heartbeat interval alone would allow; rounds do not wait that long for it. A target is judged by its step
// deadline.
constexpr MembershipOptions kWorkerMembership{.heartbeat_interval = std::chrono::milliseconds(5'000),
                                              .missed_heartbeats = 6};

class Coordinator {
 public:
  // `tokenizer` may be null (ids only, no stop strings) and must outlive this. `trace` may be null.
  Coordinator(std::unique_ptr<Transport> transport, ProtocolOptions options, GammaPolicyFactory gamma,
              const Tokenizer* tokenizer, CoordinatorCallbacks callbacks, Trace* trace = nullptr,
              const MembershipOptions& membership = kWorkerMembership);

  // on_finish reports the end of the request, also if it is refused.
  SequenceId submit(Request request);
  void cancel(SequenceId id);

  // Serves until every submitted request has finished, or it is asked to stop. An error means that the target
  // failed; each request was also finished with that error.
  Status run();
  // Handles messages until `deadline`, at most one. For servers that have other work, too.
  void poll(Clock::time_point deadline);
  // Waits for all target groups and `workers` draft workers.
  Status wait_for_peers(size_t workers, Clock::time_point deadline);
  // The missing peers, for messages, such as "the target group"; empty if none is missing.
  std::string awaited(size_t workers) const;
  // Checks the connection to target groups that were sent nothing for a while; requests of a lost group end.
  // Not for every poll: a probe gets no answer, and its queue is short.
  void probe_target();
  // Tells all workers, and inside peers that ever sent a message, to leave.
  void shutdown();

  // Ends a poll() early, from any thread.
  std::function<void()> waker() const { return transport_->waker(); }

  const Totals& totals() const { return protocol_.totals(); }
  const Protocol& protocol() const { return protocol_; }
  // With the hosts of workers and groups, which the protocol does not know.
  Overview overview() const;
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
  void note_unload(const Send& send);
  void note_change(const MemberChange& change) const;
  void note_failover(const TargetLost& lost) const;
  EventFields fields_of(PeerId peer, std::string_view kind, std::string_view reason) const;
  std::string at_host(PeerId peer) const;
  void probe_workers();
  void probe_busy_targets();
  void lose(PeerId peer, std::string why);

  std::unique_ptr<Transport> transport_;
  Protocol protocol_;
  CoordinatorCallbacks callbacks_;
  Trace* trace_;
  Membership membership_;  // of the draft workers
  Absence absence_;
  std::map<PeerId, Hello> hellos_;  // of members, to readmit a lost one; bounded as the membership is
  std::deque<Event> inbox_;         // from callbacks and failed sends; empty between polls
  bool handling_ = false;
  std::set<PeerId> peers_;  // inside
  uint64_t next_id_ = 1;
  size_t submitted_ = 0, finished_ = 0;
  int refusals_ = 0;
  Clock::time_point next_probe_{};
  // With several target groups: probes each at growing intervals.
  struct Probe {
    Clock::time_point at{};
    Clock::duration pause{};
  };
  std::map<PeerId, Probe> target_probes_;
};

}  // namespace outrider
