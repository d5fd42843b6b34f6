// One row of logits on its way from the model to a token, as one rank holds it.
#pragma once

#include <span>

#include "base/sampling_params.h"
#include "kernels/sampling/ordered_key.h"
#include "kernels/sampling/row_kernels.h"

namespace outrider {

struct ShardRow {
  std::span<float> logits;  // ids of chunks.range: raw, then processed in place
  Chunks chunks{};
  std::span<float> chunk_max;
  const SamplingParams* params = nullptr;
  float max = 0;  // of the whole row, known after the first reduction; filters never remove it
};

// The best token of this rank's slice, which is what ranks reduce by maximum. A NaN or +inf anywhere wins, so
// that every rank learns of it; none if all is masked. Needs chunk_max.
RankedToken best_logit(const ShardRow& row, bool nan);

}  // namespace outrider
