// Who takes part: joining, leaving, which worker drafts for which sequence.
#include <algorithm>

#include "coordinator/protocol.h"

namespace outrider {
namespace {

constexpr size_t kMaxEarlyWorkers = 256;  // hellos kept until the target says what its vocabulary is
constexpr int32_t kMaxResyncsPerRound = 2;

}  // namespace

void Protocol::receive(PeerId peer, Hello& hello) {
  if (hello.protocol_version != kProtocolVersion)
    return refuse_hello(peer,
                        fmt::format("protocol version {} is not {}; install the same release on both ends",
                                    hello.protocol_version, kProtocolVersion));
  switch (hello.role) {
    case Role::kTarget:
      return target_joined(peer, hello);
    case Role::kDraft:
      return worker_joined(peer, hello);
    case Role::kCoordinator:
      break;
  }
  refuse_hello(peer, "there is already a coordinator here; connect as a draft worker or a target group");
}

void Protocol::refuse_hello(PeerId peer, std::string reason) {
  ++totals_.hellos_refused;
  send(peer, Welcome{.accepted = false, .reason = std::move(reason)});
}

// ---- target ---------------------------------------------------------------------------------------------

void Protocol::target_joined(PeerId peer, Hello& hello) {
  if (target_ && target_->hello.generation == hello.generation) {  // the same life on a new connection
    target_->peer = peer;
    return send(peer, Welcome{.accepted = true, .reason = {}});
  }
  if (target_ && target_->peer != peer) return refuse_hello(peer, "a target group has already joined");
  if (hello.model.vocab_size <= 0 || hello.model.max_context <= 1)
    return refuse_hello(peer, fmt::format("vocabulary of {} and context of {} make no sense",
                                          hello.model.vocab_size, hello.model.max_context));
  if (target_) target_lost(unavailable("the target group was restarted"));
  target_ = Target{peer, std::move(hello)};
  target_status_ = {};
  join_deadline_.reset();
  send(peer, Welcome{.accepted = true, .reason = {}});
  for (auto& [early, worker] : std::exchange(early_workers_, {})) worker_joined(early, worker);
}

// Every open request ends with a typed error; new ones are refused until a target joins again.
void Protocol::target_lost(Status why) {
  target_.reset();
  plan_.reset();
  target_status_ = std::move(why);
  for (auto& [id, live] : live_) {
    live->sequence.target.open = false;
    if (!live->finished()) finish(*live, FinishReason::kError, target_status_);
  }
  sweep();
}

// ---- draft workers --------------------------------------------------------------------------------------

Status Protocol::check_worker(const Hello& hello) const {
  const ModelInfo& target = target_->hello.model;
  if (hello.model.vocabulary_fingerprint != target.vocabulary_fingerprint)
    return invalid_argument(fmt::format(
        "the vocabulary of draft model '{}' differs from that of target '{}'; use a draft model with the "
        "target's tokenizer",
        hello.model.name, target.name));
  if (hello.max_sequences < 1 || hello.model.max_context < 1)
    return invalid_argument(fmt::format("room for {} sequences of {} tokens makes no sense",
                                        hello.max_sequences, hello.model.max_context));
  return {};
}

// A worker that says hello again lost what it held: its sequences are opened afresh.
void Protocol::worker_joined(PeerId peer, Hello& hello) {
  if (!target_) {
    if (early_workers_.size() >= kMaxEarlyWorkers && !early_workers_.contains(peer))
      return refuse_hello(peer, "too many workers wait for the target group");
    early_workers_[peer] = std::move(hello);
    return;
  }
  if (Status status = check_worker(hello); !status.ok()) {
    worker_lost(peer);
    return refuse_hello(peer, status.message());
  }
  worker_lost(peer);
  workers_[peer] = Worker{.hello = std::move(hello), .unsent_closes = {}};
  ++totals_.workers_joined;
  send(peer, Welcome{.accepted = true, .reason = {}});
}

void Protocol::worker_lost(PeerId peer) {
  early_workers_.erase(peer);
  if (workers_.erase(peer) == 0) return;
  ++totals_.workers_lost;
  for (auto& [id, live] : live_) {
    if (live->link.peer != peer) continue;
    live->link = {};
    if (live->state == RequestState::kDrafting) go_plain(*live);
  }
}

Protocol::Worker* Protocol::worker_of(const LiveRequest& live) {
  if (!live.link.peer) return nullptr;
  const auto at = workers_.find(*live.link.peer);
  return at == workers_.end() ? nullptr : &at->second;
}

void Protocol::worker_missed(Worker& worker) {
  worker.misses = std::min(worker.misses + 1, 20);
  worker.silent = true;
  const auto pause = draft_timeout() * (int64_t{1} << worker.misses);
  worker.resume_at = now_ + std::min<Clock::duration>(pause, options_.max_back_off);
  worker.silent_until = now_ + options_.max_back_off;
}

// The one with room that holds the fewest.
std::pair<const PeerId, Protocol::Worker>* Protocol::best_worker(int32_t committed) {
  std::pair<const PeerId, Worker>* best = nullptr;
  for (auto& candidate : workers_) {
    const Worker& worker = candidate.second;
    const bool has_room =
        worker.held < worker.hello.max_sequences && committed < worker.hello.model.max_context;
    if (!has_room || !worker.usable(now_)) continue;
    if (!best || worker.held < best->second.held) best = &candidate;
  }
  return best;
}

// Sequences that have no worker, or one that fell silent, go where there is room.
void Protocol::assign_workers() {
  for (auto& [id, live] : live_) {
    if (!live->running() || live->state == RequestState::kDrafting) continue;
    const Worker* current = worker_of(*live);
    if (current && (!current->silent || current->usable(now_))) continue;
    auto* best = best_worker(live->sequence.committed());
    if (!best) continue;
    close_at_worker(*live);
    live->link.peer = best->first;
    ++best->second.held;
    open_at(best->first, *live);
  }
}

// Also for a sequence the worker already has: Open starts it afresh.
void Protocol::open_at(PeerId peer, LiveRequest& live) {
  const auto ids = live.sequence.ids();
  live.link.opened = true;
  live.link.fresh = true;
  live.link.known = live.sequence.committed();
  send(peer, Open{.sequence = live.id(),
                  .ids = {ids.begin(), ids.end()},
                  .prompt_length = live.sequence.prompt_length(),
                  .sampling = live.request.sampling});
}

void Protocol::close_at_worker(LiveRequest& live) {
  if (Worker* worker = worker_of(live)) {
    --worker->held;
    send(*live.link.peer, Close{live.id()});
  }
  live.link = {};
}

// The worker's queue was full: it is left alone for a while, then told again what it missed.
void Protocol::on(SendFailed& event) {
  ++totals_.sends_failed;
  if (target_ && target_->peer == event.peer)
    return target_lost(unavailable("the target group takes no messages"));
  const auto at = workers_.find(event.peer);
  if (at == workers_.end()) return;
  worker_missed(at->second);
  if (const auto* close = std::get_if<Close>(&event.message)) {
    at->second.unsent_closes.push_back(close->sequence);
    ++at->second.held;  // it still has the sequence
    return;
  }
  const auto* propose = std::get_if<Propose>(&event.message);
  const auto* open = std::get_if<Open>(&event.message);
  const auto found = live_.find(propose ? propose->sequence : open ? open->sequence : SequenceId());
  if (found == live_.end() || found->second->link.peer != event.peer) return;
  found->second->link.opened = false;
  if (found->second->state == RequestState::kDrafting) go_plain(*found->second);
}

bool Protocol::needs_resuming(PeerId peer, const Worker& worker) const {
  if (!worker.unsent_closes.empty()) return true;
  return std::any_of(live_.begin(), live_.end(), [&](const auto& item) {
    return item.second->link.peer == peer && !item.second->link.opened;
  });
}

void Protocol::resume_workers() {
  for (auto& [peer, worker] : workers_) {
    if (!worker.usable(now_)) continue;
    for (const SequenceId sequence : std::exchange(worker.unsent_closes, {})) {
      --worker.held;
      send(peer, Close{sequence});
    }
    for (auto& [id, live] : live_) {
      if (live->running() && live->link.peer == peer && !live->link.opened) open_at(peer, *live);
    }
  }
}

// The worker tells what it holds. If that is a prefix of ours it catches up from there, else (or when it
// never got the Open) it starts afresh.
void Protocol::receive(PeerId peer, Resync& message) {
  if (!workers_.contains(peer)) return unexpected(peer);
  ++totals_.resyncs;
  const auto at = live_.find(message.sequence);
  if (at == live_.end() || at->second->link.peer != peer) return send(peer, Close{message.sequence});
  LiveRequest& live = *at->second;
  const int32_t held = message.committed.value();
  const bool is_prefix =
      held > 0 && held <= live.sequence.committed() && live.sequence.hash_of_first(held) == message.hash;
  if (++live.link.resyncs > kMaxResyncsPerRound) {
    if (live.state != RequestState::kDrafting) return;
    worker_missed(workers_.at(peer));
    return go_plain(live);
  }
  if (is_prefix) {
    live.link.known = held;
  } else {
    open_at(peer, live);
  }
  if (live.state == RequestState::kDrafting) propose(live);
}

}  // namespace outrider
