// A draft worker's transport that changes every draft on its way to the coordinator.
#pragma once

#include <functional>
#include <memory>

#include "comm/transport.h"

namespace outrider::testing {

class ChangingWire final : public Transport {
 public:
  using Change = std::function<void(Draft&)>;
  ChangingWire(std::unique_ptr<Transport> inner, Change change)
      : inner_(std::move(inner)), change_(std::move(change)) {}
  Status send(PeerId to, const Message& message) override {
    const auto* draft = std::get_if<Draft>(&message);
    if (!draft || draft->ids.empty()) return inner_->send(to, message);
    Draft changed = *draft;
    change_(changed);
    return inner_->send(to, changed);
  }
  std::optional<Incoming> receive(Clock::time_point deadline) override { return inner_->receive(deadline); }
  const TransportStats& stats() const override { return inner_->stats(); }

 private:
  const std::unique_ptr<Transport> inner_;
  const Change change_;
};

inline std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport>)> changing(
    ChangingWire::Change change) {
  return [change](std::unique_ptr<Transport> inner) {
    return std::make_unique<ChangingWire>(std::move(inner), change);
  };
}

}  // namespace outrider::testing
