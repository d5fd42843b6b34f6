// The production draft worker on the virtual clock: its rounds, its outcome preparation and its policy, over
// a model that costs time and knows nothing but its own guesses (cluster/simulation/simulated_text.h).
#pragma once

#include <memory>
#include <vector>

#include "cluster/simulation/device_turns.h"
#include "cluster/simulation/event_queue.h"
#include "cluster/simulation/simulated_drafter.h"
#include "draft_worker/drafter.h"

namespace outrider {

class GuessingModel;

// Drafts for the drafter, of which nothing is known but how often they are right.
struct SimulatedGuesses {
  int32_t most = 0;       // in a pass of the draft model; 0: none
  double acceptance = 0;  // chance that a guess is its own token
  bool operator==(const SimulatedGuesses&) const = default;
};

struct ClockedDrafterOptions {
  ForwardCost cost;
  int32_t max_sequences = 16;
  int32_t max_context = 4096;  // tokens of the longest text
  int32_t fanout = 8;          // outcomes that there is room for, per sequence
  SimulatedGuesses guesses;
  DeviceTurns* turns = nullptr;  // of devices shared with the target; null: its own
};

class ClockedDrafter final : public DrafterOnClock {
 public:
  ClockedDrafter(EventQueue& events, const ClockedDrafterOptions& options, std::function<void(Message)> send);
  ~ClockedDrafter() override;

  void receive(const Message& message) override;
  double busy_seconds() const override { return busy_; }

 private:
  void turn();
  void go_on_after(double seconds);
  void pass(double seconds);
  void handle(const Message& message);

  EventQueue& events_;
  std::function<void(Message)> send_;
  std::unique_ptr<GuessingModel> model_;
  std::unique_ptr<Drafter> drafter_;
  std::vector<Message> inbox_;
  std::vector<DraftAnswer> answers_;
  DeviceTurns* turns_;
  bool in_pass_ = false;  // or about to begin one
  double busy_ = 0;
};

}  // namespace outrider
