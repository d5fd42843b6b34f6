// The best k tokens of a slice, and of all slices: the best of the group are among the best of each rank.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/sampling/shard_row.h"

namespace outrider {

class TopTokens {
 public:
  // The k best unmasked tokens of this rank's slice, best first; fewer if the slice has fewer. Valid until
  // the next call. Needs chunk_max.
  std::span<const RankedToken> local(std::span<const float> logits, Chunks chunks,
                                     std::span<const float> chunk_max, size_t k);
  // The k best of the group, from what the ranks gathered: `all` holds `count` groups of `stride` values,
  // each with at most k packed tokens in front (0: none). Valid until the next call.
  std::span<const RankedToken> merge(std::span<const uint64_t> all, size_t offset, size_t stride,
                                     size_t ranks, size_t k);

 private:
  std::span<const RankedToken> keep_best(size_t k);

  std::vector<float> maxima_;
  std::vector<RankedToken> tokens_;
};

}  // namespace outrider
