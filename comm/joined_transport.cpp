#include <atomic>
#include <utility>

#include "comm/transport.h"

namespace outrider {
namespace {

// Peers of the hub have even ids here, those of the server odd ones.
class JoinedEnd final : public Transport {
 public:
  JoinedEnd(std::unique_ptr<Transport> local, std::unique_ptr<Transport> remote)
      : local_(std::move(local)), remote_(std::move(remote)) {}

  Status send(PeerId to, const Message& message) override {
    return (to.value % 2 == 0 ? *local_ : *remote_).send(PeerId{to.value / 2}, message);
  }

  // In turns: neither a flood from outside nor a target that always has an answer ready is heard alone. The
  // remote end is the one that waits, and the hub wakes it.
  std::optional<Incoming> receive(Clock::time_point deadline) override {
    while (true) {
      for (int end = 0; end < 2; ++end) {
        remote_is_next_ = !remote_is_next_;
        if (auto incoming = take(remote_is_next_, Clock::now())) return incoming;
      }
      if (auto incoming = take(/*remote=*/true, deadline)) return incoming;
      if (woken_->exchange(false) || Clock::now() >= deadline) return std::nullopt;
    }
  }

  std::function<void()> waker() override {
    return [woken = woken_, wake = remote_->waker()] {
      *woken = true;
      wake();
    };
  }

  const TransportStats& stats() const override {
    const TransportStats& a = local_->stats();
    const TransportStats& b = remote_->stats();
    sum_ = b;
    for (size_t kind = 0; kind < TransportStats::kKinds; ++kind) {
      sum_.sent_messages[kind] += a.sent_messages[kind];
      sum_.sent_bytes[kind] += a.sent_bytes[kind];
      sum_.received_messages[kind] += a.received_messages[kind];
      sum_.received_bytes[kind] += a.received_bytes[kind];
    }
    sum_.malformed_frames += a.malformed_frames;
    sum_.duplicate_frames += a.duplicate_frames;
    return sum_;
  }

  std::string endpoint() const override { return remote_->endpoint(); }

 private:
  std::optional<Incoming> take(bool remote, Clock::time_point deadline) {
    auto incoming = (remote ? *remote_ : *local_).receive(deadline);
    if (incoming) incoming->peer.value = incoming->peer.value * 2 + (remote ? 1 : 0);
    return incoming;
  }

  const std::unique_ptr<Transport> local_, remote_;
  const std::shared_ptr<std::atomic<bool>> woken_ = std::make_shared<std::atomic<bool>>(false);
  bool remote_is_next_ = false;
  mutable TransportStats sum_;
};

}  // namespace

Result<std::unique_ptr<Transport>> make_joined_end(InprocHub& hub, const std::string& bind_endpoint,
                                                   const ZmqOptions& options) {
  ASSIGN_OR_RETURN(auto server, make_zmq_server(bind_endpoint, options));
  auto local = hub.coordinator_end();
  hub.wake_by(server->waker());
  return std::unique_ptr<Transport>(std::make_unique<JoinedEnd>(std::move(local), std::move(server)));
}

}  // namespace outrider
