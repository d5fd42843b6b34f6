// Accept tests and draws from integer weights: W = exp(l - max), or the recovery weights.
#include "base/short_weight.h"
#include "kernels/sampling/cuda/block_ops.h"
#include "kernels/sampling/ordered_key.h"
#include "target_worker/cuda/verify_kernels.h"
#include "target_worker/rules/decide.h"

namespace outrider::cuda {
namespace {

// q of one token of this rank's slice.
__device__ __forceinline__ double q_of(const VerifyBatch& b, const TestInput& in, int32_t i) {
  if (in.q_short) return static_cast<double>(weight_of_short_bits(in.q_short[i])) / in.q_sum;
  int32_t at = i;
  if (in.sparse) {
    const uint32_t* ids = b.words + in.q_ids;
    at = first_not_below(ids, in.q_count, static_cast<uint32_t>(i));
    const bool is_listed = at < in.q_count && ids[at] == static_cast<uint32_t>(i);
    if (!is_listed) return i < in.q_rest_end ? in.q_rest : 0.0;
  }
  return at < in.q_count ? static_cast<double>(b.words[in.q_weights + at]) / in.q_sum : 0.0;
}

// Sums over ranks of what was gathered.
__device__ __forceinline__ uint64_t total_of(const VerifyBatch& b, int32_t r, int which) {
  uint64_t sum = 0;
  for (int32_t rank = 0; rank < b.ranks; ++rank) sum += b.all_sums[(rank * b.rows + r) * 2 + which];
  return sum;
}
__device__ __forceinline__ uint64_t residual_of_rank(const VerifyBatch& b, int32_t rank, int32_t r) {
  return b.all_residual_sums[rank * b.rows + r];
}
__device__ __forceinline__ uint64_t residual_total(const VerifyBatch& b, int32_t r) {
  uint64_t sum = 0;
  for (int32_t rank = 0; rank < b.ranks; ++rank) sum += residual_of_rank(b, rank, r);
  return sum;
}

// Draft tokens that finite rows can test.
__device__ __forceinline__ int32_t tested_count(const VerifyBatch& b, int32_t e) {
  const int32_t gamma = b.request[e].gamma, finite = b.finite_rows[e];
  return gamma < finite ? gamma : finite;
}

__device__ __forceinline__ double accept_uniform(const RowInput& in) {
  return unit_interval(uniform_bits(in, Purpose::kAccept, in.round));
}

__global__ void __launch_bounds__(kThreads) forbid_part(const VerifyBatch b) {
  await_inputs();
  const RowMask mask = b.masks[blockIdx.y];
  const uint32_t* words = b.mask_words + mask.first_word;
  float* logits = logits_of(b, mask.row);
  for_each_token(b, [&](int32_t i) {
    if (!is_allowed(mask, words, i)) logits[i] = kMinusInfinity;
  });
}

__global__ void __launch_bounds__(kThreads) weights_of_part(const VerifyBatch b) {
  await_inputs();
  const int32_t r = b.drawn_rows[blockIdx.y];
  if (has_failed(b, r)) return;
  const float* logits = logits_of(b, r);
  uint64_t sum = 0;
  for_each_token(b, [&](int32_t i) { sum += fixed_weight(logits[i], b.max[r]); });
  sum = sum_block(sum);
  if (thread() == 0) b.part_values[r * kMaxParts + static_cast<int32_t>(blockIdx.x)] = sum;
}

__global__ void __launch_bounds__(kThreads) weights_of_row(const VerifyBatch b) {
  await_inputs();
  const int32_t r = b.drawn_rows[blockIdx.x];
  if (has_failed(b, r)) return;
  const uint64_t sum = sum_block(thread() < b.parts ? b.part_values[r * kMaxParts + thread()] : 0);
  if (thread() != 0) return;
  const int32_t draft = b.test[r].draft - b.first_token;
  b.sums[2 * r] = sum;
  b.sums[2 * r + 1] = b.test[r].draft >= 0 && draft >= 0 && draft < b.width
                          ? fixed_weight(logits_of(b, r)[draft], b.max[r])
                          : 0;
}

// Token rule: how many are accepted, and the one row to recover from. Block rule: the joint ratios; all rows'
// recovery masses are needed before anything is decided.
__global__ void __launch_bounds__(kRequestThreads) test_request(const VerifyBatch b) {
  await_inputs();
  const int32_t e = request_of_thread();
  if (e >= b.requests) return;
  const RequestInput& request = b.request[e];
  const int32_t first = request.first_row, gamma = request.gamma;
  const bool is_block = b.decision[e] == Decision::kBlock;
  for (int32_t i = 0; i <= gamma; ++i) {
    b.residual[first + i] = 0;
    b.ratios[first + i] = 1;
    b.chosen[first + i] = 0;
    b.draws[first + i] = {};
  }
  const int32_t tested = tested_count(b, e);
  b.accepted[e] = tested;
  b.fallback[e] = 0;
  if (!(is_block || b.decision[e] == Decision::kToken)) return;
  for (int32_t i = 0; i < tested; ++i) {
    const int32_t r = first + i;
    const double p = static_cast<double>(total_of(b, r, 1)) / static_cast<double>(total_of(b, r, 0));
    const double q = b.test[r].q_draft;
    if (is_block) {
      b.residual[r] = 1;
      b.ratios[r + 1] = next_block_ratio(b.ratios[r], p, q);
    } else if (!token_accepted(p, q, accept_uniform(b.row[r]))) {
      b.residual[r] = 1;
      b.accepted[e] = i;
      return;
    }
  }
}

// Recovery weight of a token; the host's RowWeights with a q.
struct Recovery {
  const float* logits;
  float max;
  double total, ratio;
  __device__ Recovery(const VerifyBatch& b, int32_t r)
      : logits(logits_of(b, r)),
        max(b.max[r]),
        total(static_cast<double>(total_of(b, r, 0))),
        ratio(b.ratios[r]) {}
  __device__ uint64_t weight(const VerifyBatch& b, int32_t r, int32_t i) const {
    return residual_weight(fixed_weight(logits[i], max), total, ratio, q_of(b, b.test[r], i));
  }
};

__global__ void __launch_bounds__(kThreads) residual_of_part(const VerifyBatch b) {
  await_inputs();
  const int32_t r = b.drawn_rows[blockIdx.y];
  if (!b.residual[r]) return;
  const Recovery recovery(b, r);
  uint64_t sum = 0;
  for_each_token(b, [&](int32_t i) { sum += recovery.weight(b, r, i); });
  sum = sum_block(sum);
  if (thread() == 0) b.residual_parts[r * kMaxParts + static_cast<int32_t>(blockIdx.x)] = sum;
}

__global__ void __launch_bounds__(kThreads) residual_of_row(const VerifyBatch b) {
  await_inputs();
  const int32_t r = b.drawn_rows[blockIdx.x];
  const bool wanted = b.residual[r] != 0;
  const uint64_t sum =
      sum_block(wanted && thread() < b.parts ? b.residual_parts[r * kMaxParts + thread()] : 0);
  if (thread() == 0) b.residual_sums[r] = sum;
}

__device__ int32_t count_block(const VerifyBatch& b, int32_t first, int32_t tested) {
  int32_t accepted = 0;
  for (int32_t i = 1; i <= tested; ++i) {  // no early exit: the last success wins
    const int32_t r = first + i;
    const bool whole = i == tested;
    const double mass = whole ? 0 : static_cast<double>(residual_total(b, r)) * 0x1p-60;
    if (block_accepted(accept_uniform(b.row[r - 1]), b.ratios[r], mass, whole)) accepted = i;
  }
  return accepted;
}

// Two-level inverse CDF: the rank by the ranks' masses; the token inside is found by draw_row.
__device__ void plan_draw(const VerifyBatch& b, int32_t r, bool residual, uint64_t bits) {
  const auto mass = [&](int32_t rank) {
    return residual ? residual_of_rank(b, rank, r) : b.all_sums[(rank * b.rows + r) * 2];
  };
  uint64_t target = multiply_high(bits, residual ? residual_total(b, r) : total_of(b, r, 0));
  int32_t owner = 0;
  while (owner < b.ranks && target >= mass(owner)) target -= mass(owner++);
  b.draws[r] = {.target = target, .ratio = b.ratios[r], .here = owner == b.rank, .residual = residual};
}

__global__ void __launch_bounds__(kRequestThreads) plan_request(const VerifyBatch b) {
  await_inputs();
  const int32_t e = request_of_thread();
  if (e >= b.requests) return;
  const int32_t first = b.request[e].first_row, finite = b.finite_rows[e], tested = tested_count(b, e);
  if (b.decision[e] == Decision::kMatchBest) return;
  if (b.decision[e] == Decision::kMatchDrawn) {
    for (int32_t r = first; r < first + finite; ++r)
      plan_draw(b, r, false, uniform_bits(b.row[r], Purpose::kPlain, 0));
    return;
  }
  if (b.decision[e] == Decision::kBlock) b.accepted[e] = count_block(b, first, tested);
  const int32_t n = b.accepted[e], r = first + n;
  if (n == finite) return;  // nothing is known behind the last token
  // Without any mass (rounding; p == q) a recovery falls back to W.
  const bool rejected = n < tested, recovers = rejected && residual_total(b, r) > 0;
  b.fallback[e] = rejected && !recovers;
  plan_draw(b, r, recovers, uniform_bits(b.row[r], Purpose::kResidual, b.row[r].round));
}

__global__ void __launch_bounds__(kThreads) draw_row(const VerifyBatch b) {
  await_inputs();
  const int32_t r = b.drawn_rows[blockIdx.x];
  const Draw draw = b.draws[r];
  if (!draw.here) return;
  const uint64_t* parts = (draw.residual ? b.residual_parts : b.part_values) + r * kMaxParts;
  const Recovery row(b, r);
  const int32_t i = find_token(parts, b.parts, b.width, draw.target, [&](int32_t token) {
    return draw.residual ? row.weight(b, r, token) : fixed_weight(row.logits[token], row.max);
  });
  if (thread() == 0 && i >= 0) b.chosen[r] = static_cast<uint64_t>(b.first_token + i) + 1;
}

__device__ __forceinline__ int32_t target_token(const VerifyBatch& b, Decision decision, int32_t r) {
  return decision == Decision::kMatchBest ? RankedToken{b.best[r]}.id().value()
                                          : static_cast<int32_t>(b.chosen[r]) - 1;
}

__global__ void __launch_bounds__(kRequestThreads) decide_request(const VerifyBatch b) {
  await_inputs();
  const int32_t e = request_of_thread();
  if (e >= b.requests) return;
  const int32_t first = b.request[e].first_row, finite = b.finite_rows[e], tested = tested_count(b, e);
  if (finite == 0) {
    b.verdicts[e] = {.failed = 1};
    return;
  }
  const bool matches = b.decision[e] == Decision::kMatchBest || b.decision[e] == Decision::kMatchDrawn;
  int32_t accepted = matches ? 0 : b.accepted[e];
  while (matches && accepted < tested &&
         target_token(b, b.decision[e], first + accepted) == b.test[first + accepted].draft)
    ++accepted;
  // The last token stands, and nothing is known behind it.
  const bool is_cut = accepted == finite;
  if (is_cut) --accepted;
  b.verdicts[e] = {
      .accepted = accepted,
      .next = is_cut ? b.test[first + accepted].draft : target_token(b, b.decision[e], first + accepted),
      .fallback = matches ? 0 : b.fallback[e]};
}

}  // namespace

void forbid_tokens(StreamView stream, const VerifyBatch& b) {
  launch(stream, parts_by_rows(b, b.mask_count), &forbid_part, b);
}

void sum_drawn_rows(StreamView stream, const VerifyBatch& b) {
  launch(stream, parts_by_rows(b, b.drawn_count), &weights_of_part, b);
  launch(stream, one_block_each(b.drawn_count), &weights_of_row, b);
}

void test_drafts(StreamView stream, const VerifyBatch& b) {
  launch(stream, one_thread_each(b.requests), &test_request, b);
}

void sum_residuals(StreamView stream, const VerifyBatch& b) {
  launch(stream, parts_by_rows(b, b.drawn_count), &residual_of_part, b);
  launch(stream, one_block_each(b.drawn_count), &residual_of_row, b);
}

void plan_draws(StreamView stream, const VerifyBatch& b) {
  launch(stream, one_thread_each(b.requests), &plan_request, b);
}

void draw_tokens(StreamView stream, const VerifyBatch& b) {
  launch(stream, one_block_each(b.drawn_count), &draw_row, b);
}

void decide(StreamView stream, const VerifyBatch& b) {
  launch(stream, one_thread_each(b.requests), &decide_request, b);
}

}  // namespace outrider::cuda
