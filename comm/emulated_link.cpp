#include "comm/emulated_link.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <random>
#include <utility>

#include "comm/codec.h"

namespace outrider {
namespace {

using std::chrono::nanoseconds;

constexpr size_t kMaxPending = 4096;  // messages under way in one direction; more are lost
constexpr std::chrono::milliseconds kHeldBack{20};

template <class... Types>
bool is_one_of(const Message& message) {
  return (std::holds_alternative<Types>(message) || ...);
}

bool joins(const Message& message) { return is_one_of<Hello, Welcome>(message); }
bool leaves(const Message& message) { return is_one_of<Failure, Shutdown>(message); }

bool may_fail(const Message& message) {
  return is_one_of<Open, Propose, HiddenStateRows, Draft, Resync, Heartbeat>(message);
}

class EmulatedLink final : public Transport {
 public:
  EmulatedLink(std::unique_ptr<Transport> inner, const LinkEmulation& options)
      : inner_(std::move(inner)), options_(options), random_(options.seed) {}

  Status send(PeerId to, const Message& message) override {
    Link* const link = link_of(to);
    if (!link) return inner_->send(to, message);
    if (is_exempt(message, *link)) {
      note_welcome(*link, message);
      return inner_->send(to, message);
    }
    if (!link->failure.ok()) return std::exchange(link->failure, {});
    put(outgoing_, link->outgoing_free_at, {to, message, frame_bytes(message)});
    release(Clock::now());
    return {};
  }

  std::optional<Incoming> receive(Clock::time_point deadline) override {
    do {
      release(Clock::now());
      if (auto arrived = take_arrived(Clock::now())) return arrived;
      auto wake = deadline;
      for (const Pending* pending : {&outgoing_, &incoming_})
        if (!pending->empty()) wake = std::min(wake, pending->begin()->first);
      auto incoming = inner_->receive(wake);
      if (!incoming && woken_->exchange(false)) break;
      if (!incoming) continue;
      if (const auto* hello = std::get_if<Hello>(&incoming->message)) note_hello(incoming->peer, hello->role);
      Link* const link = link_of(incoming->peer);
      if (!link || is_exempt(incoming->message, *link)) return incoming;
      put(incoming_, link->incoming_free_at, std::move(*incoming));
    } while (Clock::now() < deadline);
    release(Clock::now());
    return take_arrived(Clock::now());
  }

  std::function<void()> waker() override {
    return [woken = woken_, wake = inner_->waker()] {
      *woken = true;
      wake();
    };
  }

  const TransportStats& stats() const override {
    stats_ = inner_->stats();
    stats_.malformed_frames += corrupted_;
    return stats_;
  }
  std::string endpoint() const override { return inner_->endpoint(); }
  std::string host_of(PeerId peer) const override { return inner_->host_of(peer); }

 private:
  struct Link {
    Role role = Role::kCoordinator;
    Clock::time_point outgoing_free_at{}, incoming_free_at{};
    Status failure;  // of a delayed message; returned by the next send
  };
  using Pending = std::multimap<Clock::time_point, Incoming>;  // by arrival

  // Null: this peer's link is not emulated.
  Link* link_of(PeerId peer) {
    const auto at = links_.find(peer);
    if (at == links_.end()) return nullptr;
    const bool emulated = (at->second.role == Role::kDraft && options_.drafters) ||
                          (at->second.role == Role::kTarget && options_.target);
    return emulated ? &at->second : nullptr;
  }

  void note_hello(PeerId peer, Role role) { links_[peer].role = role; }

  // Partitions are timed from here, whatever time the target's start took.
  void note_welcome(const Link& link, const Message& message) {
    const auto* welcome = std::get_if<Welcome>(&message);
    if (welcome && welcome->accepted && link.role == Role::kDraft && !first_drafter_at_)
      first_drafter_at_ = Clock::now();
  }

  bool is_exempt(const Message& message, const Link& link) const {
    const auto now = Clock::now();
    return leaves(message) || (joins(message) && after_partition(now, link) == now);
  }

  // The arrival time of a message that would arrive at `at` without a partition.
  Clock::time_point after_partition(Clock::time_point at, const Link& link) const {
    if (link.role != Role::kDraft || !first_drafter_at_) return at;
    const bool parted =
        at >= *first_drafter_at_ + options_.partition_from && at < *first_drafter_at_ + options_.partition_to;
    return parted ? *first_drafter_at_ + options_.partition_to : at;
  }

  bool chance(double share) { return share > 0 && std::uniform_real_distribution<>()(random_) < share; }

  // Only a link with limited bandwidth needs the length of a message before it is sent.
  size_t frame_bytes(const Message& message) {
    if (options_.bytes_per_second == 0) return 0;
    auto frame = encode(message, {}, std::move(buffer_));
    if (!frame.ok()) return 0;  // the inner transport will report the error
    buffer_ = std::move(frame).value();
    return buffer_.size();
  }

  // The arrival time of the last byte of a message that is sent now.
  Clock::time_point transmit(Clock::time_point& free_at, size_t bytes) {
    free_at = std::max(free_at, Clock::now());
    if (options_.bytes_per_second > 0)
      free_at +=
          nanoseconds(static_cast<int64_t>(static_cast<double>(bytes) / options_.bytes_per_second * 1e9));
    return free_at + options_.delay;
  }

  void put(Pending& pending, Clock::time_point& free_at, Incoming message) {
    const Link& link = links_.at(message.peer);
    const bool faulty = link.role == Role::kDraft && may_fail(message.message);
    auto at = transmit(free_at, message.bytes);
    // Heartbeats from a partition are outdated, and would fill the queues of live workers.
    if (std::holds_alternative<Heartbeat>(message.message) && after_partition(at, link) != at) return;
    if (pending.size() >= kMaxPending || (faulty && chance(options_.loss))) return;
    if (faulty && chance(options_.corrupt) && !corrupt(message.message)) return;
    if (faulty && chance(options_.reorder))
      at += nanoseconds(std::uniform_int_distribution<int64_t>(0, nanoseconds(kHeldBack).count())(random_));
    if (faulty && chance(options_.duplicate))
      pending.emplace(after_partition(transmit(free_at, message.bytes), link), message);
    pending.emplace(after_partition(at, link), std::move(message));
  }

  // Flips one bit of the encoded message and decodes it. False: the receiving end would drop the frame.
  bool corrupt(Message& message) {
    auto frame = encode(message, {});
    if (!frame.ok()) return true;
    const auto bit = std::uniform_int_distribution<size_t>(0, 8 * frame->size() - 1)(random_);
    frame.value()[bit / 8] ^= std::byte(1 << (bit % 8));
    auto decoded = decode(*frame, 0);
    if (decoded.ok())
      message = std::move(decoded->message);
    else
      ++corrupted_;
    return decoded.ok();
  }

  void release(Clock::time_point now) {
    while (!outgoing_.empty() && outgoing_.begin()->first <= now) {
      const Incoming due = std::move(outgoing_.extract(outgoing_.begin()).mapped());
      if (Status status = inner_->send(due.peer, due.message); !status.ok())
        links_.at(due.peer).failure = std::move(status);
    }
  }

  std::optional<Incoming> take_arrived(Clock::time_point now) {
    if (incoming_.empty() || incoming_.begin()->first > now) return std::nullopt;
    return std::move(incoming_.extract(incoming_.begin()).mapped());
  }

  const std::unique_ptr<Transport> inner_;
  const LinkEmulation options_;
  const std::shared_ptr<std::atomic<bool>> woken_ = std::make_shared<std::atomic<bool>>(false);
  std::mt19937_64 random_;
  std::map<PeerId, Link> links_;  // peers that said Hello
  std::optional<Clock::time_point> first_drafter_at_;
  Pending outgoing_, incoming_;
  uint64_t corrupted_ = 0;
  mutable TransportStats stats_;
  std::vector<std::byte> buffer_;
};

}  // namespace

std::unique_ptr<Transport> make_emulated_link(std::unique_ptr<Transport> inner, const LinkEmulation& link) {
  return std::make_unique<EmulatedLink>(std::move(inner), link);
}

}  // namespace outrider
