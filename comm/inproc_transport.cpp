#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <utility>

#include "base/core_watch.h"
#include "base/relax.h"
#include "comm/frame_end.h"

namespace outrider {
namespace {

using Frame = std::vector<std::byte>;

// Frames in order. Guarded by Hub::mutex, but whether it is empty can be read without the lock, so that a
// polling receiver does not block a sender.
template <class T>
class Inbox {
 public:
  bool empty() const { return count_.load(std::memory_order_acquire) == 0; }
  size_t size() const { return frames_.size(); }
  void push(T frame) {
    frames_.push_back(std::move(frame));
    count_.store(frames_.size(), std::memory_order_release);
  }
  T pop() {
    T frame = std::move(frames_.front());
    frames_.pop_front();
    count_.store(frames_.size(), std::memory_order_release);
    return frame;
  }
  void clear() {
    frames_.clear();
    count_.store(0, std::memory_order_release);
  }

 private:
  std::deque<T> frames_;
  std::atomic<size_t> count_{0};
};

// Both directions of one worker's link. Everything here is guarded by Hub::mutex.
struct Link {
  Inbox<Frame> to_worker;
  std::condition_variable worker_wakes;
  size_t to_coordinator = 0;  // frames of this worker in Hub::inbox

  // Set while the worker is lent to the coordinator's thread. Only the two threads change it, in turn: the
  // worker's sets it and then waits, the coordinator's clears it.
  const std::function<bool()>* turn = nullptr;
  Clock::time_point last_turn{};  // time of its end: a long turn does not make its worker wait
  uint64_t waits_since = 0;       // Hub::sent at the first of the worker's unread frames

  // Smaller comes first: workers that waited long, the longest first; then workers with unread frames, in the
  // order of sending.
  std::pair<Clock::time_point, uint64_t> turn_order(Clock::time_point overdue) const {
    if (last_turn < overdue) return {last_turn, 0};
    return {overdue, to_worker.empty() ? UINT64_MAX : waits_since};
  }
  std::exception_ptr failure;
};

struct Hub {
  explicit Hub(const InprocOptions& o) : options(o) {}
  const InprocOptions options;
  std::mutex mutex;
  Inbox<std::pair<PeerId, Frame>> inbox;  // the coordinator's
  std::condition_variable coordinator_wakes;
  std::function<void()> also_wakes;  // set if the coordinator waits for more than this hub

  void wake_coordinator() {
    coordinator_wakes.notify_one();
    if (also_wakes) also_wakes();
  }
  std::atomic<bool> woken{false};  // by Transport::waker(), not handled yet
  bool coordinator_taken = false;
  bool coordinator_gone = false;
  std::map<PeerId, std::shared_ptr<Link>> links;  // workers that are alive
  uint64_t last_peer = 0;                         // never reused
  uint64_t sent = 0;                              // frames to workers
};

// Generations of one hub: the coordinator's end is 1, worker n is n + 1. The queues cannot repeat a frame.
FrameEnd frame_end(PeerId peer) { return {0, Generation(peer.value + 1), WireLimits{}}; }

// Waits until `ready` or the deadline; true if ready. A check alone does not sleep: even a wait that ends at
// once arms a timer and lets the core go idle, which costs some 50 microseconds on a virtual machine.
template <class Ready>
bool wait(std::condition_variable& wakes, std::unique_lock<std::mutex>& lock, Clock::time_point deadline,
          Ready ready) {
  return ready() || (Clock::now() < deadline && wakes.wait_until(lock, deadline, ready));
}

// How long the coordinator's thread polls before it sleeps, while a worker is lent to it: the core belongs to
// that worker, which has no other work. A sleeping thread wakes late, and often on the core of its waker,
// which is still busy.
constexpr std::chrono::milliseconds kLookBeforeSleeping{1};

// After this time without frames an idle server leaves the core to others.
constexpr std::chrono::milliseconds kIdleAfter{20};

// A lent worker gets a turn at least this often, and then takes in all messages that arrived meanwhile.
constexpr std::chrono::milliseconds kLongestWait{20};

class CoordinatorEnd final : public Transport {
 public:
  explicit CoordinatorEnd(std::shared_ptr<Hub> hub) : hub_(std::move(hub)) {}
  ~CoordinatorEnd() override {
    const std::lock_guard lock(hub_->mutex);
    hub_->coordinator_gone = true;
    hub_->inbox.clear();
    for (auto& [peer, link] : hub_->links) {  // lent workers return to their threads
      link->to_worker.push(frames_.pack(Shutdown{}).value());
      link->worker_wakes.notify_one();
    }
  }

  Status send(PeerId to, const Message& message) override {
    ASSIGN_OR_RETURN(Frame frame, frames_.pack(message));
    const size_t bytes = frame.size();
    const std::lock_guard lock(hub_->mutex);
    const auto link = hub_->links.find(to);
    if (link == hub_->links.end()) return unavailable("its thread has ended");
    if (link->second->to_worker.size() >= hub_->options.high_water_mark)
      return resource_exhausted("it is slow: its queue is full");
    ++hub_->sent;
    if (link->second->to_worker.empty()) link->second->waits_since = hub_->sent;
    link->second->to_worker.push(std::move(frame));
    if (!link->second->turn) link->second->worker_wakes.notify_one();
    frames_.count_sent(message, bytes);
    return {};
  }

  std::optional<Incoming> receive(Clock::time_point deadline) override {
    while (auto arrived = next_frame(deadline)) {
      auto& [peer, frame] = *arrived;
      if (auto decoded = frames_.unpack(frame))
        return frames_.deliver(peer, std::move(decoded->message), frame.size());
    }
    return std::nullopt;
  }

  std::function<void()> waker() override {
    return [hub = hub_] {
      const std::lock_guard lock(hub->mutex);
      hub->woken = true;
      hub->wake_coordinator();
    };
  }

  const TransportStats& stats() const override { return frames_.stats; }

 private:
  bool lent_has_frames() const {
    return std::any_of(hub_->links.begin(), hub_->links.end(),
                       [](const auto& item) { return item.second->turn && !item.second->to_worker.empty(); });
  }

  bool has_lent() const {
    return std::any_of(hub_->links.begin(), hub_->links.end(),
                       [](const auto& item) { return item.second->turn != nullptr; });
  }

  bool look(std::unique_lock<std::mutex>& lock, Clock::time_point deadline) {
    const auto now = Clock::now();
    deadline = std::min(deadline, now < last_frame_ + kIdleAfter ? now + kLookBeforeSleeping : now);
    lock.unlock();
    watch_.begin(now);
    for (auto at = now; hub_->inbox.empty() && !hub_->woken && at < deadline && watch_.may_look(at);
         at = Clock::now())
      relax();
    lock.lock();
    return !hub_->inbox.empty() || hub_->woken;
  }

  // Gives every lent worker one turn, while the inbox is empty. A worker that waited long comes first, or one
  // that always has an answer would starve the others. A turn takes in all pending messages, so the order of
  // messages between two workers is kept. True if a message waits now.
  bool give_turns(std::unique_lock<std::mutex>& lock) {
    lent_.clear();
    for (const auto& [peer, link] : hub_->links)
      if (link->turn) lent_.push_back(link);
    const auto overdue = Clock::now() - kLongestWait;
    std::stable_sort(lent_.begin(), lent_.end(), [&](const auto& a, const auto& b) {
      return a->turn_order(overdue) < b->turn_order(overdue);
    });
    for (const std::shared_ptr<Link>& link : lent_) {
      if (!hub_->inbox.empty()) break;
      lock.unlock();
      bool stays = false;
      std::exception_ptr failure;
      try {
        stays = (*link->turn)();
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      link->last_turn = Clock::now();
      if (stays) continue;
      link->failure = failure;
      link->turn = nullptr;
      link->worker_wakes.notify_one();
    }
    lent_.clear();
    return !hub_->inbox.empty();
  }

  std::optional<std::pair<PeerId, Frame>> next_frame(Clock::time_point deadline) {
    std::unique_lock lock(hub_->mutex);
    if (!hub_->inbox.empty() || !give_turns(lock)) {
      const auto wakes = [this] { return !hub_->inbox.empty() || hub_->woken || lent_has_frames(); };
      if (!has_lent() || !look(lock, deadline)) (void)wait(hub_->coordinator_wakes, lock, deadline, wakes);
      if (hub_->inbox.empty()) give_turns(lock);
    }
    if (hub_->inbox.empty()) {
      hub_->woken = false;
      return std::nullopt;
    }
    auto arrived = hub_->inbox.pop();
    last_frame_ = Clock::now();
    if (const auto link = hub_->links.find(arrived.first); link != hub_->links.end())
      --link->second->to_coordinator;
    return arrived;
  }

  const std::shared_ptr<Hub> hub_;
  std::vector<std::shared_ptr<Link>> lent_;  // of one give_turns()
  Clock::time_point last_frame_{};
  CoreWatch watch_;
  FrameEnd frames_ = frame_end(kCoordinatorPeer);
};

class WorkerEnd final : public Transport {
 public:
  WorkerEnd(std::shared_ptr<Hub> hub, std::shared_ptr<Link> link, PeerId self)
      : hub_(std::move(hub)), link_(std::move(link)), self_(self), frames_(frame_end(self)) {}
  ~WorkerEnd() override {
    const std::lock_guard lock(hub_->mutex);
    hub_->links.erase(self_);
  }

  Status send(PeerId to, const Message& message) override {
    if (to != kCoordinatorPeer) return unavailable(fmt::format("a worker has no peer {}", to.value));
    ASSIGN_OR_RETURN(Frame frame, frames_.pack(message));
    const size_t bytes = frame.size();
    const std::lock_guard lock(hub_->mutex);
    if (hub_->coordinator_gone) return unavailable("the coordinator is gone");
    if (link_->to_coordinator >= hub_->options.high_water_mark)
      return resource_exhausted("the coordinator is slow: its queue is full");
    hub_->inbox.push({self_, std::move(frame)});
    ++link_->to_coordinator;
    hub_->wake_coordinator();
    frames_.count_sent(message, bytes);
    return {};
  }

  std::optional<Incoming> receive(Clock::time_point deadline) override {
    while (auto frame = next_frame(deadline)) {
      if (auto decoded = frames_.unpack(*frame))
        return frames_.deliver(kCoordinatorPeer, std::move(decoded->message), frame->size());
    }
    return std::nullopt;
  }

  const TransportStats& stats() const override { return frames_.stats; }

  void lend(const std::function<bool()>& turn) {
    std::unique_lock lock(hub_->mutex);
    link_->turn = &turn;
    hub_->wake_coordinator();
    link_->worker_wakes.wait(lock, [this] { return !link_->turn || hub_->coordinator_gone; });
    link_->turn = nullptr;
    if (link_->failure) std::rethrow_exception(std::exchange(link_->failure, nullptr));
  }

 private:
  std::optional<Frame> next_frame(Clock::time_point deadline) {
    if (link_->to_worker.empty() && deadline <= Clock::now()) return std::nullopt;
    std::unique_lock lock(hub_->mutex);
    if (!wait(link_->worker_wakes, lock, deadline, [this] { return !link_->to_worker.empty(); }))
      return std::nullopt;
    return link_->to_worker.pop();
  }

  const std::shared_ptr<Hub> hub_;
  const std::shared_ptr<Link> link_;
  const PeerId self_;
  FrameEnd frames_;
};

class InprocHubImpl final : public InprocHub {
 public:
  explicit InprocHubImpl(const InprocOptions& options) : hub_(std::make_shared<Hub>(options)) {}

  std::unique_ptr<Transport> coordinator_end() override {
    const std::lock_guard lock(hub_->mutex);
    CHECK(!std::exchange(hub_->coordinator_taken, true), "a hub has one coordinator");
    return std::make_unique<CoordinatorEnd>(hub_);
  }

  std::unique_ptr<Transport> connect() override {
    const std::lock_guard lock(hub_->mutex);
    const PeerId self{++hub_->last_peer};
    auto link = std::make_shared<Link>();
    hub_->links.emplace(self, link);
    return std::make_unique<WorkerEnd>(hub_, std::move(link), self);
  }

  void wake_by(std::function<void()> wake) override {
    const std::lock_guard lock(hub_->mutex);
    hub_->also_wakes = std::move(wake);
  }

  void lend(Transport& worker, const std::function<bool()>& turn) override {
    auto* const end = dynamic_cast<WorkerEnd*>(&worker);
    CHECK(end, "only a worker of this hub can be lent");
    end->lend(turn);
  }

 private:
  const std::shared_ptr<Hub> hub_;
};

}  // namespace

std::shared_ptr<InprocHub> make_inproc_hub(const InprocOptions& options) {
  return std::make_shared<InprocHubImpl>(options);
}

}  // namespace outrider
