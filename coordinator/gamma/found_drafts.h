// Whether drafts that are found in the text pay, where the drafter ends each one itself: from what the last
// ones brought and how many rows they took, those that found nothing included.
#pragma once

#include "coordinator/cost_model.h"

namespace outrider {

class FoundDrafts {
 public:
  // In a batch of `batch` sequences, whose rounds together count as one step.
  void add(int32_t drafted, int32_t accepted, size_t batch);
  // Predicted tokens per second of the batch, if a draft is asked for in every round.
  double rate(const CostModel& cost, int32_t batch, int64_t context) const;

 private:
  // Decayed sums over rounds. What repeats comes in stretches: one memory is long, so that a dry stretch is
  // not taken for the end, the other one is short, so that a stretch is noticed when it begins.
  struct Memory {
    double decay, rounds, accepted, drafted;
    void add(double drafted_tokens, double accepted_tokens, size_t batch);
    double rate(const CostModel& cost, int32_t batch, int64_t context) const;
  };
  // At first as if two rounds had drafted a token each, of which most were right.
  Memory long_{.decay = 0.99, .rounds = 2, .accepted = 1.4, .drafted = 2};
  Memory short_{.decay = 0.8, .rounds = 2, .accepted = 1.4, .drafted = 2};
};

}  // namespace outrider
