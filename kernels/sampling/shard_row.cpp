#include "kernels/sampling/shard_row.h"

#include <algorithm>

namespace outrider {

RankedToken best_logit(const ShardRow& row, bool nan) {
  if (nan) return {static_cast<uint64_t>(kNanKey) << 32};
  const auto best = std::max_element(row.chunk_max.begin(), row.chunk_max.end());
  if (best == row.chunk_max.end() || *best == kMinusInfinity) return {};
  const IndexRange local = row.chunks.local(best - row.chunk_max.begin());
  const auto chunk = row.logits.subspan(static_cast<size_t>(local.begin), static_cast<size_t>(local.size()));
  return RankedToken::of(*best, row.chunks.range.begin + local.begin + find_first(chunk, *best));
}

}  // namespace outrider
