// SuccessorRanks' part of a rank on a CUDA device: the best tokens of rows of its slice, from the logits
// where they are, so that a list of nine words a row comes to the host and no row of logits.
#pragma once

#include <span>

#include "base/cuda.h"
#include "target_worker/verifier.h"

namespace outrider::cuda {

class RankedRows {
 public:
  // On the current device. Nothing is allocated later.
  explicit RankedRows(int64_t most_rows);

  // Queues the ranking of these rows, and the copy to the host.
  void queue(std::span<const int64_t> rows, const DeviceLogits& logits);
  // [rows, kRankedWords] of the last queue(), valid once its stream was waited for.
  std::span<const uint64_t> lists() const;

 private:
  int64_t count_ = 0;
  PinnedBuffer<int32_t> rows_;
  PinnedBuffer<uint64_t> lists_;
  DeviceBuffer<int32_t> device_rows_;
  DeviceBuffer<uint64_t> device_lists_;
};

}  // namespace outrider::cuda
