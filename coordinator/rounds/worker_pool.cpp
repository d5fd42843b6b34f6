#include "coordinator/rounds/worker_pool.h"

#include <algorithm>
#include <limits>

#include "coordinator/rounds/pool_limits.h"

namespace outrider {
namespace {

constexpr double kNoticeablySlow = 4;

}  // namespace

// ---- membership -----------------------------------------------------------------------------------------

bool WorkerPool::keep_early(PeerId peer, Hello& hello) {
  if (early_.size() >= size_t{kMaxEarlyWorkers} && !early_.contains(peer)) return false;
  early_[peer] = std::move(hello);
  return true;
}

Status WorkerPool::check(const Hello& hello, const ModelInfo& target, const Tokenizer* tokenizer) {
  const uint64_t vocabulary = hello.model.vocabulary_fingerprint;
  const std::vector<uint64_t>& beginnings = hello.vocabulary_beginnings;
  if (vocabulary != 0 && vocabulary != target.vocabulary_fingerprint &&
      std::find(beginnings.begin(), beginnings.end(), target.vocabulary_fingerprint) == beginnings.end() &&
      !(tokenizer && begins_with_vocabulary(*tokenizer, vocabulary)))
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
  (void)remove(peer);
  lives_.emplace(hello.generation, peer);
  workers_.emplace(peer, PoolWorker(std::move(hello), kind));
}

std::optional<DrafterKind> WorkerPool::remove(PeerId peer) {
  early_.erase(peer);
  const auto at = workers_.find(peer);
  if (at == workers_.end()) return std::nullopt;
  const DrafterKind kind = at->second.kind();
  auto [life, end] = lives_.equal_range(at->second.generation());
  lives_.erase(std::find_if(life, end, [peer](const auto& of) { return of.second == peer; }));
  untold_.erase(peer);
  workers_.erase(at);
  weights_.clear();  // they point to it
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
    auto& unload = unload_pauses_[worker.kind()];
    unload = *is_of_use
                 ? std::chrono::milliseconds(0)
                 : std::clamp(2 * unload, kFirst * options_.unload_after, kMost * options_.unload_after);
    if (!*is_of_use) found.emplace_back(peer, unload);
  }
  return found;
}

// ---- assignment -----------------------------------------------------------------------------------------

// How many times slower than the fastest worker of its kind, if that is certain; else 1. A slow worker gets
// another chance after a while.
double WorkerPool::slowness(const PoolWorker& worker, Clock::time_point now) const {
  const auto of_kind = std::find_if(fastest_.begin(), fastest_.end(),
                                    [&](const auto& known) { return known.first == worker.kind(); });
  const double fastest = of_kind == fastest_.end() ? worker.token_ns() : of_kind->second;
  const bool is_slow = worker.token_ns() > kNoticeablySlow * fastest;
  return is_slow && worker.is_measured_within(options_.max_back_off, now) ? worker.token_ns() / fastest : 1;
}

bool WorkerPool::weigh(Clock::time_point now) {
  fastest_.clear();
  for (const auto& [peer, worker] : workers_) {
    if (worker.token_ns() <= 0) continue;
    const auto of_kind = std::find_if(fastest_.begin(), fastest_.end(),
                                      [&](const auto& known) { return known.first == worker.kind(); });
    if (of_kind == fastest_.end())
      fastest_.emplace_back(worker.kind(), worker.token_ns());
    else
      of_kind->second = std::min(of_kind->second, worker.token_ns());
  }
  bool changed = std::exchange(moved_, false) || weights_.size() != workers_.size();
  weights_.resize(workers_.size());
  lightest_ = std::numeric_limits<double>::infinity();
  one_kind_ = true;
  size_t i = 0;
  for (auto& member : workers_) {
    const PoolWorker& worker = member.second;
    const Weight weight{.member = &member,
                        .kind = worker.kind(),
                        .held = worker.held(),
                        .usable = worker.is_usable(now),
                        .has_room = worker.has_room(),
                        .slowness = slowness(worker, now)};
    changed |= weights_[i] != weight;
    weights_[i++] = weight;
    one_kind_ &= weight.kind == weights_.front().kind;
    if (weight.usable && weight.has_room) lightest_ = std::min(lightest_, weight.load(false));
  }
  return changed;
}

// Fast check without a look at the other workers: no worker has less to do than the sequence's own.
bool WorkerPool::keeps(const LiveRequest& live) const {
  if (!one_kind_ || !live.link.peer || !live.choice.has_chosen()) return false;
  const auto at =
      std::lower_bound(weights_.begin(), weights_.end(), *live.link.peer,
                       [](const Weight& weight, PeerId peer) { return weight.member->first < peer; });
  if (at == weights_.end() || at->member->first != *live.link.peer) return false;
  return at->usable && live.sequence.committed() < at->member->second.max_context() &&
         at->load(true) < lightest_;
}

// The best worker for the sequence: of the kind that suits it, the one with the least load. The present
// worker is kept unless a move balances loads, because a move costs a prefill. Null: no worker can take it.
WorkerPool::Member* WorkerPool::best_for(LiveRequest& live) {
  candidates_.clear();
  kinds_here_.clear();
  for (const Weight& weight : weights_) {
    const bool has_room = live.link.peer == weight.member->first || weight.has_room;
    const bool can_read = live.sequence.committed() < weight.member->second.max_context();
    if (!has_room || !can_read || !weight.usable) continue;
    candidates_.push_back(&weight);
    if (std::find(kinds_here_.begin(), kinds_here_.end(), weight.kind) == kinds_here_.end())
      kinds_here_.push_back(weight.kind);
  }
  if (candidates_.empty()) return nullptr;
  const DrafterKind kind = live.choice.choose(kinds_here_, goodput_);
  const auto load = [&](const Weight* candidate) {
    return candidate->load(live.link.peer == candidate->member->first);
  };
  const Weight* best = nullptr;
  for (const Weight* candidate : candidates_) {
    if (candidate->kind != kind) continue;
    if (!best || load(candidate) < load(best)) best = candidate;
  }
  return best->member;
}

// Never moves a sequence whose draft waits for its plan, unless its worker is silent.
bool WorkerPool::assign(LiveRequest& live, Turn& turn) {
  const PoolWorker* current = of(live);
  const bool works = current && (!current->is_silent() || current->is_usable(turn.now()));
  if (works && (workers_.size() == 1 || live.state == RequestState::kReady)) return false;
  if (keeps(live)) return false;
  Member* best = best_for(live);
  if (!best || live.link.peer == best->first) return false;
  totals_.sequences_moved += live.link.peer.has_value();
  close(live, turn);
  live.link.peer = best->first;
  best->second.give();
  open(live, turn);
  (void)weigh(turn.now());
  moved_ = true;
  return true;
}

void WorkerPool::open(LiveRequest& live, Turn& turn) {
  live.link.opened = true;
  live.link.fresh = true;
  live.link.max_prefill = of(live)->max_prefill();
  live.link.known = live.sequence.committed();
  live.link.hidden_states = 0;
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
  for (const PeerId peer : untold_) {
    PoolWorker* worker = find(peer);
    if (!worker || !worker->is_usable(turn.now())) continue;
    for (const SequenceId sequence : worker->take_unsent_closes()) turn.send(peer, Close{sequence});
    for (auto& [id, live] : requests) {
      if (live->running() && live->link.peer == peer && !live->link.opened) open(*live, turn);
    }
  }
}

void WorkerPool::resumed(Clock::time_point now) {
  std::erase_if(untold_, [&](PeerId peer) {
    const PoolWorker* worker = find(peer);
    return !worker || worker->is_usable(now);
  });
}

}  // namespace outrider
