// Kernels of verification besides the steps of row_steps.h, in the order in which DeviceVerifier queues them.
// Collectives run between the steps, in the same places as in ShardedVerifier. Every step equals the host's,
// token by token (token_math.h, decide.h), so the integers are equal.
#pragma once

#include "base/cuda.h"
#include "target_worker/cuda/verify_batch.h"

namespace outrider::cuda {

// Between penalise_rows and scale_and_rank: what a row's mask does not allow has no logit any more.
void forbid_tokens(StreamView stream, const VerifyBatch& batch);
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
