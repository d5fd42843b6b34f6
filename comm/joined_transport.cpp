#include <atomic>
#include <utility>

#include "comm/zmq_end.h"

namespace outrider {
namespace {

// Inside peers get even ids here, outside peers odd ones.
class JoinedEnd final : public Transport {
 public:
  JoinedEnd(std::unique_ptr<Transport> inside, std::unique_ptr<ZmqEnd> outside,
            TrustZone zone = TrustZone::kOutside)
      : inside_(std::move(inside)), outside_(std::move(outside)), zone_(zone) {
    outside_->wake_by(inside_->ready_fd());
  }

  Status send(PeerId to, const Message& message) override {
    return to.value % 2 == 0 ? inside_->send(PeerId{to.value / 2}, message)
                             : outside_->send(PeerId{to.value / 2}, message);
  }

  // The ends take turns, so that neither a flood from outside nor a busy target starves the other. The outer
  // end is the one that waits, and the inner one wakes it.
  std::optional<Incoming> receive(Clock::time_point deadline) override {
    while (true) {
      for (int end = 0; end < 2; ++end) {
        outside_is_next_ = !outside_is_next_;
        if (auto incoming = take(outside_is_next_, Clock::now())) return incoming;
      }
      if (auto incoming = take(true, deadline)) return incoming;
      if (woken_->exchange(false) || Clock::now() >= deadline) return std::nullopt;
    }
  }

  std::function<void()> waker() override {
    return [woken = woken_, wake = outside_->waker()] {
      *woken = true;
      wake();
    };
  }

  const TransportStats& stats() const override {
    const TransportStats& a = inside_->stats();
    const TransportStats& b = outside_->stats();
    sum_ = b;
    for (size_t kind = 0; kind < TransportStats::kKinds; ++kind) {
      sum_.sent_messages[kind] += a.sent_messages[kind];
      sum_.sent_bytes[kind] += a.sent_bytes[kind];
      sum_.received_messages[kind] += a.received_messages[kind];
      sum_.received_bytes[kind] += a.received_bytes[kind];
    }
    sum_.malformed_frames += a.malformed_frames;
    sum_.duplicate_frames += a.duplicate_frames;
    sum_.refused_keys += a.refused_keys;
    sum_.refused_peers += a.refused_peers;
    sum_.hung_up += a.hung_up;
    return sum_;
  }

  std::string endpoint() const override { return outside_->endpoint(); }
  std::string host_of(PeerId peer) const override {
    return peer.value % 2 == 0 ? inside_->host_of(PeerId{peer.value / 2})
                               : outside_->host_of(PeerId{peer.value / 2});
  }
  // If the inside end is a hub, it wakes the outside end by another way.
  int ready_fd() const override { return outside_->ready_fd(); }

 private:
  std::optional<Incoming> take(bool outside, Clock::time_point deadline) {
    auto incoming = outside ? outside_->receive(deadline) : inside_->receive(deadline);
    if (!incoming) return incoming;
    incoming->peer.value = incoming->peer.value * 2 + (outside ? 1 : 0);
    if (outside) incoming->zone = zone_;
    return incoming;
  }

  const std::unique_ptr<Transport> inside_;
  const std::unique_ptr<ZmqEnd> outside_;
  const TrustZone zone_;
  const std::shared_ptr<std::atomic<bool>> woken_ = std::make_shared<std::atomic<bool>>(false);
  bool outside_is_next_ = false;
  mutable TransportStats sum_;
};

}  // namespace

Result<std::unique_ptr<Transport>> make_joined_end(InprocHub& hub, const std::string& bind_endpoint,
                                                   const ZmqOptions& options) {
  ASSIGN_OR_RETURN(auto outside, open_zmq_server(bind_endpoint, options));
  hub.wake_by(outside->waker());
  return std::unique_ptr<Transport>(std::make_unique<JoinedEnd>(hub.coordinator_end(), std::move(outside)));
}

Result<std::unique_ptr<Transport>> make_joined_end(std::unique_ptr<Transport> inside,
                                                   const std::string& bind_endpoint,
                                                   const ZmqOptions& options) {
  CHECK(inside->ready_fd() >= 0, "nothing would wake the end outside");
  ASSIGN_OR_RETURN(auto outside, open_zmq_server(bind_endpoint, options));
  return std::unique_ptr<Transport>(std::make_unique<JoinedEnd>(std::move(inside), std::move(outside)));
}

Result<std::unique_ptr<Transport>> make_joined_end(InprocHub& hub, std::span<ZoneEndpoint> endpoints) {
  CHECK(endpoints.size() == 1 || endpoints.size() == 2, "{} doors", endpoints.size());
  std::unique_ptr<Transport> end = hub.coordinator_end();
  for (ZoneEndpoint& at : endpoints) {
    ASSIGN_OR_RETURN(auto outside, open_zmq_server(at.endpoint, at.zmq));
    at.endpoint = outside->endpoint();
    hub.wake_by(outside->waker());  // the end added last is the one that waits
    end = std::make_unique<JoinedEnd>(std::move(end), std::move(outside), at.zone);
  }
  return end;
}

}  // namespace outrider
