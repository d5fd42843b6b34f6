// Ranks tokens by logits in device memory: of each row the best few with their scores, bit for bit those that
// TokenGuesser finds on the host behind DraftSampler::process, and so what trees under match rules are grown
// from. One thread, one stream at a time.
#pragma once

#include <span>

#include "base/cuda.h"
#include "kernels/sampling/cuda/draw_inputs.h"
#include "kernels/sampling/cuda/row_memory.h"
#include "kernels/sampling/ordered_key.h"

namespace outrider::cuda {

class DeviceRanking {
 public:
  // Memory of the current device, for rows of one step without q. `logits` is where they are found, and
  // overwritten.
  DeviceRanking(const DrawLimits& limits, float* logits);
  static int64_t bytes_for(const DrawLimits& limits);

  // Whether queue() can take them; else they are the host's.
  bool takes(std::span<const DrawRow> rows) const { return inputs_.takes(rows); }
  // For each row of a match rule the best `most` tokens, BestTokens::kMost at most, and brings them to the
  // host. Must not come before what was queued earlier is done.
  void queue(std::span<const DrawRow> rows, int32_t most, StreamView stream);
  // The best tokens, best first; fewer if the vocabulary has fewer, none where the row is not finite. Valid
  // once the stream was waited for, until the next queue().
  std::span<const RankedToken> best(int64_t row) const;

 private:
  RowBatch batch_;
  DrawInputs inputs_;
  const RowMemory memory_;
  int32_t most_ = 0;
  DeviceBuffer<uint64_t> of_parts_;
  DeviceBuffer<RankedToken> best_;
  PinnedBuffer<RankedToken> host_best_;
};

}  // namespace outrider::cuda
