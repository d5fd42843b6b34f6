// The best few tokens of rows that are processed, noise included: of every part of a row by a block of its
// own, then of all parts.
#include "base/random.h"
#include "kernels/sampling/cuda/block_ops.h"
#include "kernels/sampling/cuda/row_steps.h"

namespace outrider::cuda {
namespace {

// The tokens of a part that one thread holds: whole Philox blocks.
constexpr int kWords = 4, kHeld = kTokensPerThread;
static_assert(kHeld % kWords == 0 && BestTokens::kMost * kMaxParts <= kHeld * kThreads);

// use(i, token) of the i-th best of what the threads of the block hold, by one thread; 0: there are no more.
template <class Use>
__device__ __forceinline__ void best_of_block(const uint64_t (&held)[kHeld], int32_t most, Use use) {
  uint64_t last = ~uint64_t{0};  // of no finite token
  for (int32_t i = 0; i < most; ++i) {
    uint64_t mine = 0;
    OUTRIDER_UNROLL
    for (int h = 0; h < kHeld; ++h)
      if (held[h] < last && held[h] > mine) mine = held[h];
    last = max_block(mine);
    if (thread() == 0) use(i, last);
  }
}

__global__ void __launch_bounds__(kThreads) rank_part(const RowBatch b, const BestTokens ranked) {
  await_inputs();
  const auto part = static_cast<int32_t>(blockIdx.x), r = static_cast<int32_t>(blockIdx.y);
  if (has_failed(b, r)) return;
  const RowInput& in = b.row[r];
  const float* logits = logits_of(b, r);
  uint64_t held[kHeld];
  OUTRIDER_UNROLL
  for (int g = 0; g < kHeld / kWords; ++g) {
    const int32_t first = part * kPartTokens + kWords * (g * kThreads + thread());
    uint32_t words[kWords] = {static_cast<uint32_t>(first / kWords), static_cast<uint32_t>(in.position), 0,
                              static_cast<uint32_t>(Purpose::kGumbel) << 24};
    if (in.noisy && first < b.width) philox(words[0], words[1], words[2], words[3], in.seed);
    OUTRIDER_UNROLL
    for (int j = 0; j < kWords; ++j) {
      const int32_t token = first + j;
      const float logit = token < b.width ? logits[token] : kMinusInfinity;
      const float score = in.noisy ? gumbel_score(logit, words[j]) : logit;
      held[g * kWords + j] = logit == kMinusInfinity ? 0 : RankedToken::of(score, token).packed;
    }
  }
  uint64_t* to = ranked.of_parts + (static_cast<int64_t>(r) * b.parts + part) * ranked.most;
  best_of_block(held, ranked.most, [&](int32_t i, uint64_t token) { to[i] = token; });
}

__global__ void __launch_bounds__(kThreads) rank_row(const RowBatch b, const BestTokens ranked) {
  await_inputs();
  const auto r = static_cast<int32_t>(blockIdx.x);
  const int32_t count = has_failed(b, r) ? 0 : b.parts * ranked.most;
  const uint64_t* from = ranked.of_parts + static_cast<int64_t>(r) * b.parts * ranked.most;
  uint64_t held[kHeld];
  OUTRIDER_UNROLL
  for (int h = 0; h < kHeld; ++h) {
    const int32_t at = h * kThreads + thread();
    held[h] = at < count ? from[at] : 0;
  }
  RankedToken* to = ranked.best + r * BestTokens::kMost;
  best_of_block(held, ranked.most, [&](int32_t i, uint64_t token) { to[i] = {token}; });
}

}  // namespace

// Rows begin with token 0.
void find_best(StreamView stream, const RowBatch& b, const BestTokens& ranked) {
  launch(stream, parts_by_rows(b, b.rows), &rank_part, b, ranked);
  launch(stream, one_block_each(b.rows), &rank_row, b, ranked);
}

}  // namespace outrider::cuda
