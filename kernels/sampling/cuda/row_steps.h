// The steps from raw logits to the tokens that filters leave, and to the best tokens, in the order in which
// they are queued. On a vocabulary that is split over ranks, collectives run between the steps, in the same
// places as in ShardedVerifier; one rank needs none. Rows of a failed request are skipped. Every step equals
// the host's, token by token (token_math.h), so the integers are equal.
#pragma once

#include "base/cuda.h"
#include "kernels/sampling/cuda/row_batch.h"
#include "kernels/sampling/ordered_key.h"

namespace outrider::cuda {

// Penalties and bias, in place.
void penalise_rows(StreamView stream, const RowBatch& batch);
// Temperature, in place; best[row] = this rank's best token, with noise where noise decides at once.
void scale_and_rank(StreamView stream, const RowBatch& batch);
// After best is the group's: how many rows of each request are finite, and the maximum of every row.
void settle_best(StreamView stream, const RowBatch& batch);

// Filters. A search over rows[count] by count (top-k) or mass (top-p): for each byte of the key count_bins
// and the group's sum of searched_bins, of kKeyBins for each row; then count_ties, the group's ties in
// all_ties, cut. Six kernels: each finds for itself where the bins of the one in front lead.
struct SearchTask {
  const int32_t* rows = nullptr;
  int32_t count = 0;
  bool by_mass = false;
};
void count_bins(StreamView stream, const RowBatch& batch, const SearchTask& task, int byte);
uint64_t* searched_bins(const RowBatch& batch, const SearchTask& task, int byte);
void count_ties(StreamView stream, const RowBatch& batch, const SearchTask& task);
void cut(StreamView stream, const RowBatch& batch, const SearchTask& task);
void cut_min_p(StreamView stream, const RowBatch& batch);
// best[row] of filtered rows under the invariant rule, again.
void rank_with_noise(StreamView stream, const RowBatch& batch);

// Instead, the `most` best tokens of every finite row whose logits have no noise yet, with it where the rule
// adds it.
struct BestTokens {
  static constexpr int32_t kMost = 8;
  int32_t most = 0;
  uint64_t* of_parts = nullptr;  // [rows, parts, most]
  RankedToken* best = nullptr;   // [rows, kMost]: best first; 0: there are no more
};
void find_best(StreamView stream, const RowBatch& batch, const BestTokens& ranked);

}  // namespace outrider::cuda
