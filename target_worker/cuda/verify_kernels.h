// The steps of sharded verification on the device, in the order in which DeviceVerifier queues them; between
// them stand the collectives that ShardedVerifier has in the same places. Rows of a failed request are passed
// over. Every step is the one of the host, token by token (token_math.h, decide.h), so the integers are
// equal.
#pragma once

#include "base/cuda.h"
#include "target_worker/cuda/verify_batch.h"

namespace outrider::cuda {

// Penalties and bias, in place.
void penalise_rows(StreamView stream, const VerifyBatch& batch);
// Temperature, in place; best[row] = this rank's best token, with noise where noise decides at once.
void scale_and_rank(StreamView stream, const VerifyBatch& batch);
// After best is the group's: which requests failed, and the maximum of every row.
void settle_best(StreamView stream, const VerifyBatch& batch);

// Filters. A search over rows[count] by count (top-k) or mass (top-p): for each byte of the key count_bins,
// the group's sum of bins, descend; then count_ties, the group's ties in all_ties, cut.
struct SearchTask {
  const int32_t* rows = nullptr;
  int32_t count = 0;
  bool by_mass = false;
};
void count_bins(StreamView stream, const VerifyBatch& batch, const SearchTask& task, int byte);
void descend(StreamView stream, const VerifyBatch& batch, const SearchTask& task, int byte);
void count_ties(StreamView stream, const VerifyBatch& batch, const SearchTask& task);
void cut(StreamView stream, const VerifyBatch& batch, const SearchTask& task);
void cut_min_p(StreamView stream, const VerifyBatch& batch);
// best[row] of filtered rows under the invariant rule, again.
void rank_with_noise(StreamView stream, const VerifyBatch& batch);

// sums of every drawn row.
void sum_drawn_rows(StreamView stream, const VerifyBatch& batch);
// After all_sums: the accept tests, and which recovery weights they leave to be summed.
void test_drafts(StreamView stream, const VerifyBatch& batch);
void sum_residuals(StreamView stream, const VerifyBatch& batch);
// After all_residual_sums: what is drawn from which row, and on which rank it lies.
void plan_draws(StreamView stream, const VerifyBatch& batch);
void draw_tokens(StreamView stream, const VerifyBatch& batch);
// After chosen is the group's.
void decide(StreamView stream, const VerifyBatch& batch);

}  // namespace outrider::cuda
