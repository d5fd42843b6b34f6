#include "coordinator/worker_pool.h"

#include <algorithm>

#include "coordinator/pool_limits.h"

namespace outrider {
namespace {

constexpr double kNoticeablySlow = 4;

}  // namespace

// ---- membership -----------------------------------------------------------------------------------------

bool WorkerPool::keep_early(PeerId peer, Hello& hello) {
  if (early_.size() >= size_t{kMostEarlyWorkers} && !early_.contains(peer)) return false;
  early_[peer] = std::move(hello);
  return true;
}

Status WorkerPool::check(const Hello& hello, const ModelInfo& target) {
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

bool WorkerPool::is_full() const { return workers_.size() >= size_t{kMostDraftWorkers}; }

void WorkerPool::join(PeerId peer, Hello hello, DrafterKind kind) {
  DrafterTotals& drafter = totals_.drafters[kind];
  if (drafter.name.empty()) drafter.name = hello.model.name;
  ++drafter.joined;
  ++totals_.workers_joined;
  workers_.insert_or_assign(peer, PoolWorker(std::move(hello), kind));
}

std::optional<DrafterKind> WorkerPool::remove(PeerId peer) {
  early_.erase(peer);
  const auto at = workers_.find(peer);
  if (at == workers_.end()) return std::nullopt;
  const DrafterKind kind = at->second.kind();
  workers_.erase(at);
  return kind;
}

PoolWorker* WorkerPool::find(PeerId peer) {
  const auto at = workers_.find(peer);
  return at == workers_.end() ? nullptr : &at->second;
}

std::vector<std::pair<PeerId, std::chrono::milliseconds>> WorkerPool::useless(Clock::time_point now) {
  constexpr int kFirst = 4, kMost = 64;  // times unload_after
  std::vector<std::pair<PeerId, std::chrono::milliseconds>> found;
  if (options_.unload_after.count() == 0) return found;
  for (auto& [peer, worker] : workers_) {
    const auto is_of_use = worker.is_of_use(now, options_.unload_after);
    if (!is_of_use) continue;
    auto& rest = rests_[worker.kind()];
    rest = *is_of_use ? std::chrono::milliseconds(0)
                      : std::clamp(2 * rest, kFirst * options_.unload_after, kMost * options_.unload_after);
    if (!*is_of_use) found.emplace_back(peer, rest);
  }
  return found;
}

// ---- assignment -----------------------------------------------------------------------------------------

// How many times slower than the fastest of its kind, where that is beyond doubt; else 1. Who was slow once
// gets another chance after a while.
double WorkerPool::slowness(const PoolWorker& worker, Clock::time_point now) const {
  double fastest = worker.token_ns();
  for (const auto& [peer, other] : workers_)
    if (other.kind() == worker.kind() && other.token_ns() > 0) fastest = std::min(fastest, other.token_ns());
  const bool is_slow = worker.token_ns() > kNoticeablySlow * fastest;
  return is_slow && worker.is_measured_within(options_.max_back_off, now) ? worker.token_ns() / fastest : 1;
}

// Where the sequence had best be drafted for: of the kind that suits it the worker that has the least to do,
// and the one it has unless a move evens things out, because a move costs reading the text again. Null:
// nobody can.
WorkerPool::Member* WorkerPool::best_for(LiveRequest& live, Clock::time_point now) {
  candidates_.clear();
  kinds_here_.clear();
  for (auto& candidate : workers_) {
    const PoolWorker& worker = candidate.second;
    const bool has_room = live.link.peer == candidate.first || worker.has_room();
    const bool can_read = live.sequence.committed() < worker.max_context();
    if (!has_room || !can_read || !worker.is_usable(now)) continue;
    candidates_.push_back(&candidate);
    if (std::find(kinds_here_.begin(), kinds_here_.end(), worker.kind()) == kinds_here_.end())
      kinds_here_.push_back(worker.kind());
  }
  if (candidates_.empty()) return nullptr;
  const DrafterKind kind = live.choice.choose(kinds_here_, goodput_);
  const auto load =
      [&](const Member* candidate) {  // with this sequence; half a sequence less where it is already
        const bool has_it = live.link.peer == candidate->first;
        return (candidate->second.held() + (has_it ? -0.5 : 1)) * slowness(candidate->second, now);
      };
  Member* best = nullptr;
  for (Member* candidate : candidates_) {
    if (candidate->second.kind() != kind) continue;
    if (!best || load(candidate) < load(best)) best = candidate;
  }
  return best;
}

// Not while a draft waits for its plan, unless its worker is silent.
bool WorkerPool::assign(LiveRequest& live, Turn& turn) {
  const PoolWorker* current = of(live);
  const bool works = current && (!current->is_silent() || current->is_usable(turn.now()));
  if (works && (workers_.size() == 1 || live.state == RequestState::kReady)) return false;
  Member* best = best_for(live, turn.now());
  if (!best || live.link.peer == best->first) return false;
  totals_.sequences_moved += live.link.peer.has_value();
  close(live, turn);
  live.link.peer = best->first;
  best->second.give();
  open(live, turn);
  return true;
}

void WorkerPool::open(LiveRequest& live, Turn& turn) {
  live.link.opened = true;
  live.link.fresh = true;
  live.link.known = live.sequence.committed();
  live.link.states = 0;
  ++totals_.drafters[of(live)->kind()].opened;
  turn.send(*live.link.peer, live.open());
}

void WorkerPool::close(LiveRequest& live, Turn& turn) {
  if (PoolWorker* worker = of(live)) {
    worker->take_back();
    turn.send(*live.link.peer, Close{live.id()});
  }
  live.link = {};
}

// ---- back-off -------------------------------------------------------------------------------------------

bool WorkerPool::has_to_be_told(PeerId peer, const PoolWorker& worker, const RequestMap& requests) {
  if (worker.has_unsent_closes()) return true;
  return std::any_of(requests.begin(), requests.end(), [peer](const auto& item) {
    return item.second->link.peer == peer && !item.second->link.opened;
  });
}

void WorkerPool::resume(RequestMap& requests, Turn& turn) {
  for (auto& [peer, worker] : workers_) {
    if (!worker.is_usable(turn.now())) continue;
    for (const SequenceId sequence : worker.take_unsent_closes()) turn.send(peer, Close{sequence});
    for (auto& [id, live] : requests) {
      if (live->running() && live->link.peer == peer && !live->link.opened) open(*live, turn);
    }
  }
}

}  // namespace outrider
