// Decides whether drafts found in the text pay, where the drafter ends each draft itself: from the gains and
// rows of the last drafts, empty ones included.
#pragma once

#include "coordinator/costs/cost_model.h"

namespace outrider {

class FoundDrafts {
 public:
  // In a batch of `batch` sequences, whose rounds together count as one step.
  void add(int32_t drafted, int32_t accepted, size_t batch);
  // Predicted tokens per second of the batch, if a draft is asked for in every round.
  double rate(const CostModel& cost, int32_t batch, int64_t context) const;

 private:
  // Decayed sums over rounds. Repetitions come in stretches. The long memory keeps a dry stretch from looking
  // like the end, the short one notices a stretch when it begins.
  struct Memory {
    double decay, rounds, accepted, drafted;
    void add(double drafted_tokens, double accepted_tokens, size_t batch);
    double rate(const CostModel& cost, int32_t batch, int64_t context) const;
  };
  // The prior: two rounds with a drafted token each, mostly right.
  Memory long_{.decay = 0.99, .rounds = 2, .accepted = 1.4, .drafted = 2};
  Memory short_{.decay = 0.8, .rounds = 2, .accepted = 1.4, .drafted = 2};
};

}  // namespace outrider
