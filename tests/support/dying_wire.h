// One end of a connection whose owner dies after a given number of messages of one kind. The next message of
// that kind is not sent.
#pragma once

#include <memory>
#include <optional>
#include <variant>

#include "comm/transport.h"
#include "tests/support/test_cluster.h"

namespace outrider::testing {

template <class Kind>
class DyingWire final : public Transport {
 public:
  DyingWire(std::unique_ptr<Transport> inner, int messages) : inner_(std::move(inner)), messages_(messages) {}
  Status send(PeerId to, const Message& message) override {
    if (is_dead_) return unavailable("its worker is dead");
    is_dead_ = std::holds_alternative<Kind>(message) && messages_-- == 0;
    if (is_dead_) throw WorkerDeath();
    return inner_->send(to, message);
  }
  std::optional<Incoming> receive(Clock::time_point deadline) override { return inner_->receive(deadline); }
  const TransportStats& stats() const override { return inner_->stats(); }

 private:
  const std::unique_ptr<Transport> inner_;
  int messages_;
  bool is_dead_ = false;
};

}  // namespace outrider::testing
