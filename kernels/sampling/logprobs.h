// Log-probabilities of the raw model at emitted positions, from sharded rows: of the emitted token and the n
// best.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "comm/collectives.h"
#include "kernels/sampling/shard_row.h"
#include "kernels/sampling/top_tokens.h"

namespace outrider {

struct LogprobQuery {
  std::span<float> raw;  // this rank's slice, as the model made it; finite maximum over all ranks
  TokenId chosen{};
  int top = 0;
};

struct RowLogprobs {
  float chosen = 0;
  std::vector<std::pair<TokenId, float>> top;  // best first
};

class ShardLogprobs {
 public:
  explicit ShardLogprobs(Collectives& group) : group_(group) {}
  // Two collectives for all queries together, none for no queries. Valid until the next call.
  std::span<const RowLogprobs> compute(std::span<const LogprobQuery> queries, Chunks chunks);

 private:
  void gather_best(std::span<const LogprobQuery> queries, Chunks chunks);

  Collectives& group_;
  TopTokens top_;
  std::vector<float> chunk_max_;
  std::vector<uint64_t> mine_, all_, sums_;
  std::vector<RowLogprobs> rows_;
  std::vector<RankedToken> best_, chosen_;
};

}  // namespace outrider
