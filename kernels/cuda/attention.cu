// Paged attention on the device. A row's KV is cut at absolute positions; splits are reduced apart
// (attention_mma_cuda.cu, attention_float_cuda.cu) and combined here, so a row's result depends on its own
// position only.
#include <algorithm>

#include "base/cuda_device.h"
#include "kernels/cuda/attention_splits.h"
#include "kernels/cuda/norm_row.h"

namespace outrider::cuda {
namespace {

constexpr int kThreads = kNormThreads;

// factors[s] = exp(max of split s - max of all) for splits from `begin` on; returns the sum of the splits'
// sums under them, by thread and then in the tree of norm_row.h, and the sink's, if there is one.
__device__ __forceinline__ float weigh_splits(const float* results, int begin, int splits, const float* sink,
                                              float* of_warps, float* factors) {
  const int tid = static_cast<int>(threadIdx.x);
  float max = sink ? *sink : -INFINITY;
  for (int s = begin + tid; s < splits; s += kThreads) max = fmaxf(max, results[2 * s]);
  for (int lanes = 16; lanes >= 1; lanes /= 2) max = fmaxf(max, shuffle_xor(max, lanes));
  if (tid % static_cast<int>(kWarp) == 0) of_warps[tid / static_cast<int>(kWarp)] = max;
  sync_block();
  for (int w = 0; w < kNormWarps; ++w) max = fmaxf(max, of_warps[w]);
  sync_block();
  float sum = 0;
  for (int s = begin + tid; s < splits; s += kThreads) {
    factors[s] = expf(results[2 * s] - max);
    sum = fmaf(results[2 * s + 1], factors[s], sum);
  }
  sum = sum_of_block(sum, of_warps);  // with a barrier: the factors are there
  return sink ? sum + expf(*sink - max) : sum;
}

// Grid: heads, rows. Shared memory: one float for each warp and each split. Values are added in ascending
// order of the splits.
template <class T>
__global__ void __launch_bounds__(kThreads) combine_splits(const AttentionTurn turn) {
  const int head = static_cast<int>(blockIdx.x), d = turn.layer.value_dim();
  const int32_t row = turn.first_row + static_cast<int32_t>(blockIdx.y);
  const int32_t position = load_of_others(turn.batch.positions + row);  // as in attend_tiles
  const int begin = turn.first_split(position), splits = split_count(position + 1);
  await_inputs();
  float* factors = shared_memory<float>() + kNormWarps;
  const float* results = turn.max_and_sum(row, head, 0);
  const float* weighted = turn.weighted(row, head, 0);
  const float* sink = turn.a.sinks ? turn.a.sinks + head : nullptr;
  const bool is_one = splits == begin + 1 && !sink;  // its factor is 1
  const int end = is_one ? begin : splits;
  const float sum = is_one ? results[2 * begin + 1]
                           : weigh_splits(results, begin, splits, sink, shared_memory<float>(), factors);
  for (int j = static_cast<int>(threadIdx.x); j < d; j += kThreads) {
    float value = is_one ? weighted[static_cast<int64_t>(begin) * d + j] : 0.0f;
    OUTRIDER_UNROLL_BY(8)
    for (int s = begin; s < end; ++s)
      value = fmaf(weighted[static_cast<int64_t>(s) * d + j], factors[s], value);
    value = value / sum;
    if (turn.a.gate) {
      const float gate = turn.a.gate[row * turn.a.q_stride + int64_t{head} * d + j];
      value = value * (1.0f / (1.0f + expf(-gate)));
    }
    static_cast<T*>(turn.a.out)[(static_cast<int64_t>(row) * turn.a.heads + head) * d + j] =
        rounded<T>(value);
  }
}

}  // namespace

int64_t attention_turn_rows(int64_t heads, int64_t value_dim, int64_t max_positions) {
  constexpr int64_t kWorkspaceFloats = int64_t{8} << 20, kLeast = 16, kMost = kMaxTurnRows;
  const int64_t row = attention_workspace(1, std::max<int64_t>(heads, 1), value_dim, max_positions);
  return std::clamp(kWorkspaceFloats / row, kLeast, kMost);
}

int64_t attention_workspace(int64_t turn_rows, int64_t heads, int64_t value_dim, int64_t max_positions) {
  return turn_rows * heads * split_count(static_cast<int32_t>(max_positions)) * (value_dim + 2);
}

void attention(StreamView stream, const DeviceBatch& batch, const KvLayer& layer,
               const AttentionArguments& arguments) {
  if (arguments.heads == 0) return;
  AttentionTurn turn{
      .batch = batch, .layer = layer, .a = arguments, .splits = split_count(arguments.max_positions)};
  const auto rows = static_cast<int32_t>(arguments.rows), at_once = static_cast<int32_t>(arguments.turn_rows);
  for (; turn.first_row < rows; turn.first_row += at_once) {
    turn.rows = std::min(at_once, rows - turn.first_row);
    if (layer.type == KvType::kBFloat16)
      attend_on_tensor_cores(stream, turn);
    else
      attend_in_floats(stream, turn);
    const LaunchShape combine{.grid_x = static_cast<unsigned>(arguments.heads),
                              .grid_y = static_cast<unsigned>(turn.rows),
                              .threads = kThreads,
                              .shared_bytes = (kNormWarps + static_cast<size_t>(turn.splits)) * sizeof(float),
                              .early = true};
    if (arguments.out_type == WeightType::kBFloat16)
      launch(stream, combine, &combine_splits<bf16>, turn);
    else
      launch(stream, combine, &combine_splits<float>, turn);
  }
}

}  // namespace outrider::cuda
