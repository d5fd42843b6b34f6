// Who takes part: joining, leaving, which worker drafts for which sequence.
#include <algorithm>

#include "comm/message_check.h"
#include "coordinator/protocol.h"

namespace outrider {
namespace {

constexpr size_t kMaxEarlyWorkers = 128;  // hellos kept until the target says what its vocabulary is
constexpr size_t kMaxWorkers = 256;
// Where messages are lost a few are usual: of an Open, and again of its repetition.
constexpr int32_t kMaxResyncsPerRound = 16;
constexpr size_t kMaxKinds = 32;
constexpr double kNoticeablySlow = 4;

}  // namespace

void Protocol::receive(PeerId peer, Hello& hello) {
  if (hello.protocol_version != kProtocolVersion)
    return refuse_hello(peer,
                        fmt::format("protocol version {} is not {}; install the same release on both ends",
                                    hello.protocol_version, kProtocolVersion));
  for (std::string* text : {&hello.model.name, &hello.model.isa}) *text = legible(*text);
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
  send(peer, Welcome{.accepted = false, .reason = std::move(reason), .target = {}, .eos_ids = {}});
}

// ---- target ---------------------------------------------------------------------------------------------

void Protocol::target_joined(PeerId peer, Hello& hello) {
  if (target_ && target_->hello.generation == hello.generation) {  // the same life on a new connection
    target_->peer = peer;
    return send(peer, Welcome{.accepted = true, .reason = {}, .target = {}, .eos_ids = {}});
  }
  if (target_ && target_->peer != peer) return refuse_hello(peer, "a target group has already joined");
  if (hello.model.vocab_size <= 0 || hello.model.max_context <= 1)
    return refuse_hello(peer, fmt::format("vocabulary of {} and context of {} make no sense",
                                          hello.model.vocab_size, hello.model.max_context));
  if (target_) target_lost(unavailable("the target group was restarted"));
  target_ = Target{peer, std::move(hello)};
  target_status_ = {};
  join_deadline_.reset();
  send(peer, Welcome{.accepted = true, .reason = {}, .target = {}, .eos_ids = {}});
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
  const uint64_t vocabulary = hello.model.vocabulary_fingerprint;
  if (vocabulary != 0 && vocabulary != target.vocabulary_fingerprint)
    return invalid_argument(
        fmt::format("the vocabulary of draft model '{}' ({:016x}) differs from that of target '{}' "
                    "({:016x}); use a draft "
                    "model with the target's tokenizer",
                    hello.model.name, vocabulary, target.name, target.vocabulary_fingerprint));
  if (hello.max_sequences < 1 || hello.model.max_context < 1)
    return invalid_argument(fmt::format("room for {} sequences of {} tokens makes no sense",
                                        hello.max_sequences, hello.model.max_context));
  return {};
}

// A worker that says hello again lost what it held: its sequences are opened afresh.
void Protocol::worker_joined(PeerId peer, Hello& hello) {
  hello.slices = {};  // a target group's
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
  if (workers_.size() >= kMaxWorkers)
    return refuse_hello(peer, fmt::format("there are {} draft workers already", workers_.size()));
  const DrafterKind kind = kind_of(hello);
  costs_.try_emplace(kind);
  DrafterTotals& drafter = totals_.drafters[kind];
  if (drafter.name.empty()) drafter.name = hello.model.name;
  ++drafter.joined;
  ++totals_.workers_joined;
  workers_[peer] = Worker{.hello = std::move(hello), .kind = kind, .unsent_closes = {}};
  send(peer, Welcome{.accepted = true,
                     .reason = {},
                     .target = target_->hello.model,
                     .eos_ids = options_.eos_ids,
                     .slices = target_->hello.slices});
}

// Beyond what a pool holds in earnest, all others count as one.
DrafterKind Protocol::kind_of(const Hello& hello) const {
  const DrafterKind kind = std::max<uint64_t>(1, hello.model.fingerprint);
  return costs_.size() < kMaxKinds || costs_.contains(kind) ? kind : 1;
}

// The kind it was of, if it was a worker.
std::optional<DrafterKind> Protocol::forget_worker(PeerId peer) {
  early_workers_.erase(peer);
  const auto at = workers_.find(peer);
  if (at == workers_.end()) return std::nullopt;
  const DrafterKind kind = at->second.kind;
  workers_.erase(at);
  for (auto& [id, live] : live_) {
    if (live->link.peer != peer) continue;
    live->link = {};
    if (live->state == RequestState::kDrafting) go_plain(*live);
  }
  return kind;
}

void Protocol::worker_lost(PeerId peer) {
  const auto kind = forget_worker(peer);
  if (!kind) return;
  ++totals_.workers_lost;
  ++totals_.drafters[*kind].lost;
}

void Protocol::worker_left(PeerId peer) {
  const auto kind = forget_worker(peer);
  if (!kind) return;
  ++totals_.workers_left;
  ++totals_.drafters[*kind].left;
}

Protocol::Worker* Protocol::worker_of(const LiveRequest& live) {
  if (!live.link.peer) return nullptr;
  const auto at = workers_.find(*live.link.peer);
  return at == workers_.end() ? nullptr : &at->second;
}

// The rounds of a batch that an outage lets down together are one miss: those begun before a pause do not
// lengthen it. The pause follows from what was waited for, so that the share of time that is lost falls.
void Protocol::worker_missed(Worker& worker, Clock::duration waited) {
  worker.silent = true;
  worker.silent_until = now_ + options_.max_back_off;
  if (now_ < worker.resume_at) return;
  worker.misses = std::min(worker.misses + 1, 20);
  const auto pause = waited * (int64_t{1} << worker.misses);
  worker.resume_at = now_ + std::min<Clock::duration>(pause, options_.max_back_off);
}

void Protocol::worker_answered(Worker& worker, const RoundInFlight& round) {
  if (round.read_prompt || round.draft.ids.empty()) return;
  const auto waited = std::chrono::nanoseconds(round.decided_at - round.begun_at);
  const double token_ns = static_cast<double>(waited.count()) / static_cast<double>(round.draft.ids.size());
  worker.token_ns = worker.token_ns == 0 ? token_ns : 0.8 * worker.token_ns + 0.2 * token_ns;
  worker.measured_at = now_;
}

// How many times slower than the fastest of its kind, where that is beyond doubt; else 1. Who was slow once
// gets another chance after a while.
double Protocol::slowness(const Worker& worker) const {
  double fastest = worker.token_ns;
  for (const auto& [peer, other] : workers_)
    if (other.kind == worker.kind && other.token_ns > 0) fastest = std::min(fastest, other.token_ns);
  const bool is_slow = worker.token_ns > kNoticeablySlow * fastest;
  return is_slow && now_ - worker.measured_at < options_.max_back_off ? worker.token_ns / fastest : 1;
}

// Where the sequence had best be drafted for: of the kind that suits it the worker that has the least to do,
// and the one it has unless a move evens things out, because a move costs reading the text again. Null:
// nobody can.
std::pair<const PeerId, Protocol::Worker>* Protocol::best_worker(LiveRequest& live) {
  candidates_.clear();
  kinds_here_.clear();
  for (auto& candidate : workers_) {
    const Worker& worker = candidate.second;
    const bool has_room = live.link.peer == candidate.first || worker.held < worker.hello.max_sequences;
    const bool can_read = live.sequence.committed() < worker.hello.model.max_context;
    if (!has_room || !can_read || !worker.usable(now_)) continue;
    candidates_.push_back(&candidate);
    if (std::find(kinds_here_.begin(), kinds_here_.end(), worker.kind) == kinds_here_.end())
      kinds_here_.push_back(worker.kind);
  }
  if (candidates_.empty()) return nullptr;
  const DrafterKind kind = live.choice.choose(kinds_here_, goodput_);
  const auto load =
      [&](const auto* candidate) {  // with this sequence; half a sequence less where it is already
        const bool has_it = live.link.peer == candidate->first;
        return (candidate->second.held + (has_it ? -0.5 : 1)) * slowness(candidate->second);
      };
  std::pair<const PeerId, Worker>* best = nullptr;
  for (auto* candidate : candidates_) {
    if (candidate->second.kind != kind) continue;
    if (!best || load(candidate) < load(best)) best = candidate;
  }
  return best;
}

// A sequence's worker changes between its rounds, not while a draft waits for its plan.
void Protocol::assign_workers() {
  if (workers_.empty()) return;
  for (auto& [id, live] : live_) {
    if (!live->running() || live->state == RequestState::kDrafting) continue;
    const Worker* current = worker_of(*live);
    const bool works = current && (!current->silent || current->usable(now_));
    if (works && (workers_.size() == 1 || live->state == RequestState::kReady)) continue;
    assign_worker(*live);
  }
}

void Protocol::assign_worker(LiveRequest& live) {
  auto* best = best_worker(live);
  if (!best || live.link.peer == best->first) return;
  totals_.sequences_moved += live.link.peer.has_value();
  close_at_worker(live);
  live.link.peer = best->first;
  ++best->second.held;
  use_kind(live, best->second.kind);
  open_at(best->first, live);
}

// What a draft length policy learnt of one kind of drafter says nothing about another.
void Protocol::use_kind(LiveRequest& live, DrafterKind kind) {
  if (live.kind != kind && live.kind != 0) {
    live.other_gammas[live.kind] = std::move(live.gamma);
    live.gamma = std::move(live.other_gammas[kind]);
    if (!live.gamma) live.gamma = live.request.gamma ? live.request.gamma() : gamma_();
  }
  live.kind = kind;
}

// Also for a sequence the worker already has: Open starts it afresh.
void Protocol::open_at(PeerId peer, LiveRequest& live) {
  live.link.opened = true;
  live.link.fresh = true;
  live.link.known = live.sequence.committed();
  ++totals_.drafters[workers_.at(peer).kind].opened;
  send(peer, live.open());
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
    return target_lost(
        unavailable("the target group takes no messages" + (event.why.empty() ? "" : ": " + event.why)));
  const auto at = workers_.find(event.peer);
  if (at == workers_.end()) return;
  const auto* propose = std::get_if<Propose>(&event.message);
  if (propose && propose->sent_after_us > 0) return;  // its queue is full of what was said again
  worker_missed(at->second);
  if (const auto* close = std::get_if<Close>(&event.message)) {
    at->second.unsent_closes.push_back(close->sequence);
    ++at->second.held;  // it still has the sequence
    return;
  }
  const auto* open = std::get_if<Open>(&event.message);
  const auto found = live_.find(propose ? propose->sequence : open ? open->sequence : SequenceId());
  if (found == live_.end() || found->second->link.peer != event.peer) return;
  found->second->link.opened = false;
  found->second->link.shadow.reset();
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
  live.link.shadow.reset();
  if (live.state == RequestState::kDrafting) ask(live);
}

}  // namespace outrider
