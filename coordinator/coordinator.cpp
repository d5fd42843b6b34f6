#include "coordinator/coordinator.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/log_line.h"
#include "coordinator/probe_pause.h"

namespace outrider {
namespace {

constexpr std::chrono::milliseconds kIdlePoll{200};
constexpr size_t kMaxKnownPeers = 1024;
constexpr int kMaxUnread = 10'000;
constexpr int kToldRefusals = 8;
constexpr std::chrono::milliseconds kProbeInterval{250};  // of draft workers

}  // namespace

Coordinator::Coordinator(std::unique_ptr<Transport> transport, ProtocolOptions options,
                         GammaPolicyFactory gamma, const Tokenizer* tokenizer, CoordinatorCallbacks callbacks,
                         Trace* trace, const MembershipOptions& membership)
    : transport_(std::move(transport)),
      protocol_(std::move(options), std::move(gamma), tokenizer),
      callbacks_(std::move(callbacks)),
      trace_(trace),
      membership_(membership) {}

SequenceId Coordinator::submit(Request request) {
  const SequenceId id(next_id_++);
  ++submitted_;
  handle(Submit{id, std::move(request)});
  return id;
}

void Coordinator::cancel(SequenceId id) { handle(Cancel{id}); }

// Must run before any deadline is checked.
void Coordinator::note_absence() {
  const auto missed = absence_.look(now());
  if (missed == Clock::duration(0)) return;
  log_line(LogLevel::kWarning,
           "no event was handled for {} s (a long pass on this thread, or a stopped process); deadlines move",
           std::chrono::duration_cast<std::chrono::seconds>(missed + Absence::kLongestTurn).count());
  membership_.move(missed);
  inbox_.push_back(Away{missed});
}

// Steps the machine for this event and for what its actions cause. Callbacks re-enter here and only queue.
void Coordinator::handle(Event event) {
  if (!handling_) note_absence();
  inbox_.push_back(std::move(event));
  if (handling_) return;
  handling_ = true;
  while (!inbox_.empty()) {
    Event next = std::move(inbox_.front());
    inbox_.pop_front();
    for (Action& action : protocol_.step(std::move(next), now())) perform(action);
  }
  handling_ = false;
}

void Coordinator::perform(Action& action) {
  if (auto* send = std::get_if<Send>(&action)) {
    note_refusal(*send);
    const Status status = transport_->send(send->to, send->message);
    note_unload(*send);
    if (status.ok()) return;
    if (status.code() == StatusCode::kUnavailable)
      lose(send->to, status.message());
    else
      inbox_.push_back(SendFailed{send->to, std::move(send->message), status.message()});
  } else if (auto* emit = std::get_if<Emit>(&action)) {
    if (callbacks_.on_emit) callbacks_.on_emit(*emit);
  } else if (auto* finish = std::get_if<Finish>(&action)) {
    ++finished_;
    if (callbacks_.on_finish) callbacks_.on_finish(*finish);
  } else if (auto* round = std::get_if<RoundDone>(&action)) {
    if (trace_) trace_->add(*round, protocol_.open_requests() - protocol_.running_requests());
    if (callbacks_.on_round) callbacks_.on_round(*round);
  } else if (auto* lost = std::get_if<TargetLost>(&action)) {
    note_failover(*lost);
  } else if (auto* change = std::get_if<MemberChange>(&action)) {
    note_change(*change);
  }
}

// ---- events of the log ----------------------------------------------------------------------------------

std::string Coordinator::at_host(PeerId peer) const {
  const std::string host = transport_->host_of(peer);
  return host.empty() ? host : " at " + host;
}

EventFields Coordinator::fields_of(PeerId peer, std::string_view kind, std::string_view reason) const {
  return {{"member", std::string(kind)},
          {"peer", static_cast<int64_t>(peer.value)},
          {"host", transport_->host_of(peer)},
          {"reason", std::string(reason)}};
}

// A loss is reported with what is left. Members of a process of its own are there as long as the process.
void Coordinator::note_change(const MemberChange& change) const {
  const bool is_target = change.group.has_value();
  const std::string_view kind = is_target ? "target group" : "draft worker";
  const std::string member =
      fmt::format("{} {}{}{}", kind, is_target ? static_cast<uint64_t>(*change.group) : change.peer.value,
                  change.only_prefills ? ", which only prefills," : "", at_host(change.peer));
  EventFields fields = fields_of(change.peer, kind, change.about);
  if (is_target) {
    fields.emplace_back("group", static_cast<int64_t>(*change.group));
    fields.emplace_back("group_role", change.only_prefills ? "prefill" : "decode");
  }
  const size_t here = is_target ? protocol_.targets_here() : protocol_.worker_count();
  const auto count = fmt::format("{} {}{}", here, kind, here == 1 ? "" : "s");
  if (change.kind == MemberChange::Kind::kJoined) {
    fields[3] = {"model", change.about};
    log_event(protocol_.is_one_process() ? LogLevel::kDebug : LogLevel::kInfo, "join",
              fmt::format("{} joined with model '{}'; now there {} {}", member, change.about,
                          here == 1 ? "is" : "are", count),
              fields);
    return;
  }
  if (change.kind == MemberChange::Kind::kRests)
    return log_event(LogLevel::kWarning, "rest", fmt::format("{} gets no requests: {}", member, change.about),
                     fields);
  const bool is_lost = change.kind == MemberChange::Kind::kLost;
  log_event(is_lost ? LogLevel::kWarning : LogLevel::kInfo, is_lost ? "loss" : "leave",
            fmt::format("{} {}: {}", member, is_lost ? "is lost" : "left", change.about), fields);
  if (!is_target && here == 0)
    log_event(LogLevel::kWarning, "degraded", "no draft worker is left; decoding goes on without its drafts",
              {{"member", std::string(kind)}, {"left", 0}});
  if (is_target && here < protocol_.target_groups())
    log_event(LogLevel::kWarning, "degraded",
              here == 0 ? std::string("no target group is left")
                        : fmt::format("{} of {} target groups {} left", here, protocol_.target_groups(),
                                      here == 1 ? "is" : "are"),
              {{"member", std::string(kind)}, {"left", static_cast<int64_t>(here)}});
}

void Coordinator::note_failover(const TargetLost& lost) const {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(lost.wait).count();
  log_event(lost.handed_over > 0 ? LogLevel::kWarning : LogLevel::kInfo, "failover",
            seconds > 0
                ? fmt::format("{} running requests of target group {} wait up to {} s for another one "
                              "(--target-timeout): {}",
                              lost.handed_over, lost.group, seconds, lost.why.message())
                : fmt::format("{} running requests of target group {} go on in the other groups: {}",
                              lost.handed_over, lost.group, lost.why.message()),
            {{"member", "target group"},
             {"group", static_cast<int64_t>(lost.group)},
             {"requests", static_cast<int64_t>(lost.handed_over)},
             {"reason", lost.why.message()}});
}

void Coordinator::lose(PeerId peer, std::string why) {
  membership_.forget(peer);
  hellos_.erase(peer);
  inbox_.push_back(PeerLost{peer, std::move(why)});
}

// The refused worker gets the Welcome; the log gets the first kToldRefusals refusals.
void Coordinator::note_refusal(const Send& send) {
  const auto* welcome = std::get_if<Welcome>(&send.message);
  if (!welcome || welcome->accepted || ++refusals_ > kToldRefusals) return;
  log_event(LogLevel::kWarning, "refusal",
            fmt::format("a worker{} is refused: {}{}", at_host(send.to), welcome->reason,
                        refusals_ == kToldRefusals ? "; further refusals are only counted" : ""),
            fields_of(send.to, "worker", welcome->reason));
}

// The worker is unknown until its next Hello.
void Coordinator::note_unload(const Send& send) {
  const auto* unload = std::get_if<Unload>(&send.message);
  if (!unload) return;
  membership_.forget(send.to);
  hellos_.erase(send.to);
}

// A process that died has closed its connection, which the next send to it reports. So rounds need not wait
// for their deadlines.
void Coordinator::probe_workers() {
  if (now() < next_probe_) return;
  next_probe_ = now() + kProbeInterval;
  std::vector<std::pair<PeerId, std::string>> gone;
  for (const auto& [peer, hello] : hellos_) {
    const Status status = transport_->send(peer, Heartbeat{});
    if (status.code() == StatusCode::kUnavailable) gone.emplace_back(peer, status.message());
  }
  for (auto& [peer, why] : gone) {
    membership_.forget(peer);
    hellos_.erase(peer);
    handle(PeerLost{peer, std::move(why)});
  }
}

// Finds a dead group, which cannot answer, so that another group can continue its requests.
void Coordinator::probe_busy_targets() {
  if (!protocol_.probes_targets()) return;
  const auto time = now();
  std::erase_if(target_probes_, [this](const auto& item) { return !protocol_.is_target(item.first); });
  for (const PeerId target : protocol_.targets()) {
    Probe& probe = target_probes_.try_emplace(target, Probe{time, kFirstProbePause}).first->second;
    if (time < probe.at + probe.pause) continue;
    probe = {time, next_probe_pause(std::chrono::duration_cast<std::chrono::microseconds>(probe.pause))};
    const Status status = transport_->send(target, Heartbeat{});
    if (status.code() == StatusCode::kUnavailable) handle(PeerLost{target, status.message()});
  }
}

void Coordinator::probe_target() {
  for (const PeerId target : protocol_.targets()) {
    const Status status = transport_->send(target, Heartbeat{});
    if (status.code() == StatusCode::kUnavailable) handle(PeerLost{target, status.message()});
  }
}

// Forgets peers that are gone: they need no Shutdown, and over months there may be many.
void Coordinator::note_peer(PeerId peer) {
  if (peers_.size() >= kMaxKnownPeers)
    std::erase_if(
        peers_, [this](PeerId known) { return !membership_.is_alive(known) && !protocol_.is_target(known); });
  if (peers_.size() < kMaxKnownPeers) peers_.insert(peer);
}

// Keeps a draft worker's Hello once the protocol has answered it. A refused worker leaves no entry.
void Coordinator::note_hello(PeerId peer, Hello hello) {
  if (!protocol_.has_worker(peer)) {
    membership_.forget(peer);
    hellos_.erase(peer);
    return;
  }
  (void)membership_.hello(peer, hello.generation, now());
  if (hellos_.size() >= kMaxKnownPeers)
    std::erase_if(hellos_, [this](const auto& item) { return !membership_.is_alive(item.first); });
  hello.slices = {};
  hellos_.insert_or_assign(peer, std::move(hello));
}

// Any message but Hello shows that its sender is alive. A lost worker that sends again is readmitted with its
// earlier Hello.
void Coordinator::note_sign_of_life(const Incoming& incoming) {
  if (std::holds_alternative<Shutdown>(incoming.message)) {  // it leaves
    membership_.forget(incoming.peer);
    hellos_.erase(incoming.peer);
    return;
  }
  const auto change = membership_.heard(incoming.peer, now());
  const auto hello = hellos_.find(incoming.peer);
  if (change && change->kind == MembershipChange::Kind::kRejoined && hello != hellos_.end())
    handle(MessageReceived{incoming.peer, hello->second});
}

void Coordinator::poll(Clock::time_point deadline) {
  if (const auto next = protocol_.next_deadline()) deadline = std::min(deadline, *next);
  if (const auto next = membership_.next_deadline()) deadline = std::min(deadline, *next);
  if (!hellos_.empty()) deadline = std::min(deadline, std::max(next_probe_, now()));
  for (const auto& [peer, probe] : target_probes_)
    deadline = std::min(deadline, std::max(probe.at + probe.pause, now()));
  auto incoming = transport_->receive(std::min(deadline, now() + Absence::kLongestWait));
  note_absence();
  for (const MembershipChange& change : membership_.expire(now()))
    if (change.kind == MembershipChange::Kind::kLost) handle(PeerLost{change.peer, "it is silent"});
  probe_workers();
  probe_busy_targets();
  if (!incoming) return handle(Tick{});
  const PeerId peer = incoming->peer;
  if (const auto probe = target_probes_.find(peer); probe != target_probes_.end())
    probe->second = {now(), kFirstProbePause};
  if (incoming->zone != TrustZone::kOutside) note_peer(peer);
  if (const auto* draft = std::get_if<Draft>(&incoming->message); draft && trace_)
    trace_->note_draft(draft->sequence, draft->round, peer);
  std::optional<Hello> hello;
  if (const auto* said = std::get_if<Hello>(&incoming->message); !said)
    note_sign_of_life(*incoming);
  else if (said->role == Role::kDraft)
    hello = *said;
  handle(MessageReceived{peer, std::move(incoming->message), incoming->zone, incoming->bytes});
  if (hello) note_hello(peer, std::move(*hello));
}

Status Coordinator::run() {
  const auto asked_to_stop = [&] { return callbacks_.asked_to_stop && callbacks_.asked_to_stop(); };
  while (finished_ < submitted_ && !asked_to_stop()) poll(now() + kIdlePoll);
  return protocol_.target_status();
}

Status Coordinator::wait_for_peers(size_t workers, Clock::time_point deadline) {
  const size_t groups = protocol_.groups_to_begin();
  while (protocol_.targets_here() < groups || protocol_.worker_count() < workers) {
    RETURN_IF_ERROR(protocol_.target_status());
    if (now() >= deadline) {
      return deadline_exceeded(
          fmt::format("{} {} in time", awaited(workers),
                      protocol_.is_one_process() ? "could not be loaded" : "did not join"));
    }
    poll(deadline);
  }
  return {};
}

std::string Coordinator::awaited(size_t workers) const {
  const auto missing = [](size_t here, size_t of, const char* what) {
    if (here >= of) return std::string();
    if (of == 1) return fmt::format("the {}", what);
    return fmt::format("{} of {} {}s", of - here, of, what);
  };
  const bool is_one = protocol_.is_one_process();
  const std::string targets = missing(protocol_.targets_here(), protocol_.groups_to_begin(),
                                      is_one ? "target model" : "target group"),
                    drafters =
                        missing(protocol_.worker_count(), workers, is_one ? "draft model" : "draft worker");
  // Workers that said Hello before there was a target to draft for.
  const size_t early = protocol_.early_workers();
  if (is_one && early >= workers && !targets.empty()) return targets;
  const std::string ready =
      early > 0 ? fmt::format(" ({} {} ready and wait{} for it)", early,
                              early == 1 ? "draft worker is" : "draft workers are", early == 1 ? "s" : "")
                : "";
  if (targets.empty()) return drafters;
  if (drafters.empty() || early >= workers) return targets + ready;
  return fmt::format("{} and {}{}", targets, drafters, ready);
}

void Coordinator::shutdown() {
  // Includes peers whose Hello is still unread.
  for (int n = 0; n < kMaxUnread; ++n) {
    const auto incoming = transport_->receive(now());
    if (!incoming) break;
    peers_.insert(incoming->peer);
  }
  for (const auto& [peer, hello] : hellos_) peers_.insert(peer);
  // Peers that are gone need no Shutdown.
  for (const PeerId peer : peers_) (void)transport_->send(peer, Shutdown{});
  // Workers lent to this thread read it now. A worker that says Hello meanwhile also gets a Shutdown; without
  // an answer it would keep looking for a coordinator like this one.
  for (int n = 0; n < kMaxUnread; ++n) {
    const auto incoming = transport_->receive(now());
    if (!incoming) break;
    if (std::holds_alternative<Hello>(incoming->message)) (void)transport_->send(incoming->peer, Shutdown{});
  }
}

Overview Coordinator::overview() const {
  Overview out = protocol_.overview();
  for (WorkerOverview& worker : out.workers) worker.host = transport_->host_of(PeerId{worker.peer});
  for (GroupOverview& group : out.groups)
    if (group.here) group.host = transport_->host_of(PeerId{group.peer});
  return out;
}

void Coordinator::fill_report(nlohmann::json& out) const {
  fill_json(totals(), out);
  protocol_.cost().fill_json(out["cost_model"]);
  for (size_t i = 0; out.contains("groups") && i < out["groups"].size(); ++i)
    protocol_.cost(static_cast<int32_t>(i)).fill_json(out["groups"][i]["cost_model"]);
  fill_json(transport_stats(), totals(), out["wire"]);
}

}  // namespace outrider
