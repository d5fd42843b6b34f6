// A draft worker's transport that loses, delays or repeats hidden states of the target on their way to the
// worker.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <random>

#include "comm/transport.h"

namespace outrider::testing {

struct RowFaults {
  double lost = 0, twice = 0, late = 0;  // shares of the messages; a late one comes behind the next message
};

class RowFaultWire final : public Transport {
 public:
  RowFaultWire(std::unique_ptr<Transport> inner, RowFaults faults)
      : inner_(std::move(inner)), faults_(faults) {}
  Status send(PeerId to, const Message& message) override { return inner_->send(to, message); }
  std::optional<Incoming> receive(Clock::time_point deadline) override {
    if (!due_.empty()) {
      Incoming next = std::move(due_.front());
      due_.pop_front();
      return next;
    }
    auto incoming = inner_->receive(deadline);
    if (!incoming) return incoming;
    if (!std::holds_alternative<HiddenStateRows>(incoming->message)) {
      for (Incoming& held : held_) due_.push_back(std::move(held));
      held_.clear();
      return incoming;
    }
    if (chance(faults_.lost)) return std::nullopt;
    if (chance(faults_.twice)) due_.push_back(*incoming);
    if (!chance(faults_.late)) return incoming;
    held_.push_back(std::move(*incoming));
    return std::nullopt;
  }
  const TransportStats& stats() const override { return inner_->stats(); }

 private:
  bool chance(double share) { return std::uniform_real_distribution<>()(random_) < share; }

  const std::unique_ptr<Transport> inner_;
  const RowFaults faults_;
  std::mt19937 random_{5};
  std::deque<Incoming> due_, held_;
};

inline std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport>)> with_row_faults(
    RowFaults faults) {
  return [faults](std::unique_ptr<Transport> inner) {
    return std::make_unique<RowFaultWire>(std::move(inner), faults);
  };
}

}  // namespace outrider::testing
