// A simulated draft worker in lockstep, which has no decisions to make: like the real one it advances the
// rounds of all its sequences together, one token per pass, or one block (ForwardCost::block_rows). For
// preparing ahead the real drafter runs, in lab/simulate/clocked_drafter.h.
#pragma once

#include <functional>
#include <map>

#include "cluster/acceptance_process.h"
#include "cluster/simulation/device_turns.h"
#include "cluster/simulation/event_queue.h"
#include "cluster/simulation/forward_cost.h"
#include "comm/messages.h"

namespace outrider {

class DrafterOnClock {
 public:
  virtual ~DrafterOnClock() = default;
  virtual void receive(const Message& message) = 0;
  virtual double busy_seconds() const = 0;
};

class SimulatedDrafter final : public DrafterOnClock {
 public:
  // `turns`: of the devices that it shares with the target; null: it has a device of its own.
  SimulatedDrafter(EventQueue& events, const ForwardCost& cost, const AcceptanceProcess& acceptance,
                   std::function<void(Message)> send, DeviceTurns* turns = nullptr)
      : events_(events), cost_(cost), acceptance_(acceptance), send_(std::move(send)), turns_(turns) {}

  void receive(const Message& message) override;
  double busy_seconds() const override { return busy_; }

 private:
  struct Sequence {
    int32_t committed = 0, cached = 0;
    uint64_t hash = 0;
    bool drafting = false;
    Propose job;
    int32_t drafted = 0;
    std::vector<float> margins;  // StopKind::kChances
    double survival = 1;
    int64_t ingest_ns = 0, draft_ns = 0;
  };
  void propose(const Propose& message);
  void start_pass();
  void end_pass(double seconds, const std::vector<SequenceId>& taking_part);
  void answer(Sequence& sequence);
  bool stops(const Sequence& sequence) const;
  bool weigh(Sequence& sequence) const;  // the token drafted last

  EventQueue& events_;
  ForwardCost cost_;
  const AcceptanceProcess& acceptance_;
  std::function<void(Message)> send_;
  DeviceTurns* turns_;
  std::map<SequenceId, Sequence> sequences_;
  bool running_ = false;
  double busy_ = 0;
};

}  // namespace outrider
