// Sums of partial results over the ranks of a target group, in the fixed tree. This one goes through pinned
// host memory and the group's ordinary collectives: right everywhere, and the reference for faster
// transports.
#pragma once

#include "base/cuda.h"
#include "comm/collectives.h"

namespace outrider::cuda {

class RankSum {
 public:
  RankSum(Collectives& collectives, int64_t max_floats);

  bool needed() const { return collectives_->size() > 1; }
  // values[i] = sum over ranks, in place, in the balanced tree. Waits for the stream; cannot be captured.
  void sum(float* values, int64_t count, StreamView stream);
  // One rank holds the value and the others +0: the bits are added as integers, so -0 survives.
  void merge(float* values, int64_t count, StreamView stream);

 private:
  Collectives* collectives_;
  PinnedBuffer<float> staging_;
};

}  // namespace outrider::cuda
