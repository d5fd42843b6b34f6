// From raw logits to the best token of every row: penalties, bias, temperature, noise, maximum.
#include "base/random.h"
#include "kernels/sampling/cuda/block_ops.h"
#include "kernels/sampling/cuda/row_steps.h"
#include "kernels/sampling/ordered_key.h"

namespace outrider::cuda {
namespace {

// How often `id` stands among the first `count` drafted tokens.
__device__ __forceinline__ int32_t occurrences(const CountedToken* drafted, int32_t count, int32_t id) {
  int32_t times = 0;
  for (int32_t i = 0; i < count; ++i) times += drafted[i].id == id;
  return times;
}

__device__ __forceinline__ void penalise(float& logit, const PenaltyFactors& factors,
                                         const CountedToken& token, int32_t drafted) {
  logit = penalised(logit, factors, token.in_prompt != 0, token.in_output + drafted);
}

// Several biases of one token are added in their order, by one thread.
__device__ __forceinline__ void add_biases(const Bias* biases, int32_t count, int32_t position,
                                           float* logits) {
  for (int32_t k = thread(); k < count; k += kThreads) {
    const int32_t local = biases[k].local;
    bool is_first = true;
    for (int32_t j = 0; j < k; ++j) is_first &= biases[j].local != local;
    if (!is_first) continue;
    float logit = logits[local];
    for (int32_t j = k; j < count; ++j)
      if (biases[j].local == local && position < biases[j].until) logit += biases[j].value;
    logits[local] = logit;
  }
}

// A drafted token gets its penalty once, with committed and drafted occurrences together.
__global__ void __launch_bounds__(kThreads) penalise_block(const RowBatch b) {
  await_inputs();
  const auto r = static_cast<int32_t>(blockIdx.x);
  const RequestInput& request = b.request[b.row[r].request];
  float* logits = logits_of(b, r);
  if (request.penalised) {
    const int32_t before = b.row[r].drafted;
    const CountedToken* drafted = b.counted + request.first_drafted;
    for (int32_t c = thread(); c < request.counts; c += kThreads) {
      const CountedToken token = b.counted[request.first_count + c];
      if (occurrences(drafted, before, token.id) == 0)
        penalise(logits[token.local], request.factors, token, 0);
    }
    for (int32_t d = thread(); d < before; d += kThreads) {
      const CountedToken token = drafted[d];
      if (token.local < 0 || occurrences(drafted, d, token.id) > 0) continue;
      penalise(logits[token.local], request.factors, token, occurrences(drafted, before, token.id));
    }
  }
  sync_block();
  add_biases(b.biases + request.first_bias, request.biases, b.row[r].position, logits);
}

// This thread's best token of the block's part. Tokens of one Philox block belong to one thread.
template <bool kScale>
__device__ __forceinline__ uint64_t best_of_thread(const RowBatch& b, const RowInput& in, float* logits,
                                                   bool noisy) {
  const int32_t begin = static_cast<int32_t>(blockIdx.x) * kPartTokens;
  const int32_t end = begin + kPartTokens < b.width ? begin + kPartTokens : b.width;
  const int32_t last = (b.first_token + end - 1) >> 2;
  uint64_t best = 0;
  for (int32_t group = ((b.first_token + begin) >> 2) + thread(); group <= last; group += kThreads) {
    uint32_t words[4] = {static_cast<uint32_t>(group), static_cast<uint32_t>(in.position), 0,
                         static_cast<uint32_t>(Purpose::kGumbel) << 24};
    if (noisy) philox(words[0], words[1], words[2], words[3], in.seed);
    OUTRIDER_UNROLL
    for (int32_t j = 0; j < 4; ++j) {
      const int32_t token = 4 * group + j, i = token - b.first_token;
      if (i < begin || i >= end) continue;
      float value = logits[i];
      if (kScale && in.scale != 1) logits[i] = value *= in.scale;
      if (value == kMinusInfinity) continue;
      // A row that is not finite keeps the key that says so.
      if (noisy && value < -kMinusInfinity) value = gumbel_score(value, words[j]);
      const uint64_t packed = RankedToken::of(value, token).packed;
      best = packed > best ? packed : best;
    }
  }
  return best;
}

__global__ void __launch_bounds__(kThreads) scale_part(const RowBatch b) {
  await_inputs();
  const auto r = static_cast<int32_t>(blockIdx.y);
  const RowInput& in = b.row[r];
  const uint64_t best =
      max_block(best_of_thread<true>(b, in, logits_of(b, r), in.noisy != 0 && in.filtered == 0));
  if (thread() == 0) b.part_values[r * kMaxParts + static_cast<int32_t>(blockIdx.x)] = best;
}

__global__ void __launch_bounds__(kThreads) noise_part(const RowBatch b) {
  await_inputs();
  const int32_t r = b.noisy_rows[blockIdx.y];
  if (has_failed(b, r)) return;
  const uint64_t best = max_block(best_of_thread<false>(b, b.row[r], logits_of(b, r), true));
  if (thread() == 0) b.part_values[r * kMaxParts + static_cast<int32_t>(blockIdx.x)] = best;
}

// rows: null for all rows.
__global__ void __launch_bounds__(kThreads) best_of_parts(const RowBatch b, const int32_t* rows) {
  await_inputs();
  const int32_t r = rows ? rows[blockIdx.x] : static_cast<int32_t>(blockIdx.x);
  if (rows && has_failed(b, r)) return;
  const uint64_t best = max_block(thread() < b.parts ? b.part_values[r * kMaxParts + thread()] : 0);
  if (thread() == 0) b.best[r] = best;
}

__global__ void __launch_bounds__(kRequestThreads) settle_requests(const RowBatch b) {
  await_inputs();
  const int32_t e = request_of_thread();
  if (e >= b.requests) return;
  const RequestInput& request = b.request[e];
  int32_t finite = request.gamma + 1;
  for (int32_t i = request.gamma; i >= 0; --i) {
    const RankedToken best{b.best[request.first_row + i]};
    if (!best.is_finite()) finite = i;
    b.max[request.first_row + i] = best.value();
  }
  b.finite_rows[e] = finite;
}

}  // namespace

void penalise_rows(StreamView stream, const RowBatch& b) {
  launch(stream, one_block_each(b.rows), &penalise_block, b);
}

void scale_and_rank(StreamView stream, const RowBatch& b) {
  launch(stream, parts_by_rows(b, b.rows), &scale_part, b);
  launch(stream, one_block_each(b.rows), &best_of_parts, b, static_cast<const int32_t*>(nullptr));
}

void settle_best(StreamView stream, const RowBatch& b) {
  launch(stream, one_thread_each(b.requests), &settle_requests, b);
}

void rank_with_noise(StreamView stream, const RowBatch& b) {
  launch(stream, parts_by_rows(b, b.noisy_count), &noise_part, b);
  launch(stream, one_block_each(b.noisy_count), &best_of_parts, b, b.noisy_rows);
}

}  // namespace outrider::cuda
