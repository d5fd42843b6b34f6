// Mixtures of experts: which ones a token goes through, and what they leave of the wide MLP that all of them
// are.
#include <algorithm>

#include "base/cuda_device.h"
#include "transformer/ops/cuda/cuda_ops.h"
#include "transformer/ops/norm_row.h"

namespace outrider::cuda {
namespace {

constexpr int kThreads = kNormThreads;
constexpr int kWarps = kNormWarps;
constexpr int kLanes = static_cast<int>(kWarp);
constexpr int kEach = ExpertChoices::kMost / kLanes;  // experts of a lane: e, e + 32, ...

__device__ __forceinline__ float number(float value) { return value; }
__device__ __forceinline__ float number(bf16 value) { return to_float(value); }

__device__ __forceinline__ float max_of_warp(float value) {
  for (int lanes = 16; lanes >= 1; lanes /= 2) value = fmaxf(value, shuffle_xor(value, lanes));
  return value;
}

// By one warp, from the scores of all experts. Ids are exact as floats.
__device__ __forceinline__ void choose(const ExpertChoices& a, const float* scores, float* weights) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  float left[kEach], kept[kEach], best = -INFINITY, sum = 0;
  OUTRIDER_UNROLL
  for (int j = 0; j < kEach; ++j) {
    const int e = lane + j * kLanes;
    left[j] = e < a.experts ? scores[e] : -INFINITY;
    kept[j] = 0;
    best = fmaxf(best, left[j]);
  }
  const float max = max_of_warp(best);
  OUTRIDER_UNROLL
  for (int j = 0; j < kEach; ++j) sum = sum + (lane + j * kLanes < a.experts ? expf(left[j] - max) : 0.0f);
  const float total = sum_of_warp(sum);
  float chosen = 0;
  for (int k = 0; k < a.chosen; ++k) {
    best = -INFINITY;
    OUTRIDER_UNROLL
    for (int j = 0; j < kEach; ++j) best = fmaxf(best, left[j]);
    best = max_of_warp(best);
    float id = INFINITY;
    OUTRIDER_UNROLL
    for (int j = 0; j < kEach; ++j)
      if (left[j] == best) id = fminf(id, static_cast<float>(lane + j * kLanes));
    id = -max_of_warp(-id);
    const float share = expf(best - max) / total;
    chosen = chosen + share;
    OUTRIDER_UNROLL
    for (int j = 0; j < kEach; ++j) {
      if (static_cast<float>(lane + j * kLanes) != id) continue;
      kept[j] = share;
      left[j] = -INFINITY;
    }
  }
  const bool is_lost = !(total > 0 && total < INFINITY);  // a score that is not finite
  OUTRIDER_UNROLL
  for (int j = 0; j < kEach; ++j) {
    const int e = lane + j * kLanes;
    if (e < a.experts) weights[e] = is_lost ? NAN : a.renormalise ? kept[j] / chosen : kept[j];
  }
  if (lane == 0) weights[a.experts] = a.shared_gate ? 1.0f / (1.0f + expf(-scores[a.experts])) : 0.0f;
}

// A block for each token; a warp scores experts in turn.
template <class T>
__global__ void __launch_bounds__(kThreads) choose_rows(const ExpertChoices a) {
  await_inputs();
  const int64_t m = blockIdx.x;
  const T* x = static_cast<const T*>(a.x) + m * a.hidden;
  const int warp = static_cast<int>(threadIdx.x / kWarp), lane = static_cast<int>(threadIdx.x % kWarp);
  auto* scores = shared_memory<float>();
  const int count = a.experts + (a.shared_gate ? 1 : 0);
  for (int e = warp; e < count; e += kWarps) {
    const float* row = e < a.experts ? a.router + e * a.hidden : a.shared_gate;
    float sum = 0;
    for (int64_t i = lane; i < a.hidden; i += kLanes) sum = fmaf(row[i], number(x[i]), sum);
    sum = sum_of_warp(sum);
    if (lane == 0) scores[e] = a.bias && e < a.experts ? sum + a.bias[e] : sum;
  }
  sync_block();
  if (warp == 0) choose(a, scores, a.weights + m * (a.experts + 1));
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    gate_expert_rows(const float* gate_up, const ExpertGate rule, const float* weights,
                     const ExpertColumns columns, int64_t rows, T* out) {
  await_inputs();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, width = columns.size();
  if (at >= rows * width) return;
  const int64_t m = at / width, i = at % width;
  const float weight = weights[m * (columns.experts + 1) + columns.expert_of(static_cast<int32_t>(i))];
  float gate = gate_up[m * 2 * width + i], up = gate_up[m * 2 * width + width + i];
  if (rule.bias) gate = gate + rule.bias[i], up = up + rule.bias[width + i];
  if (rule.is_clamped) {  // comparisons leave what is no number
    if (gate > rule.limit) gate = rule.limit;
    if (up > rule.limit) up = rule.limit;
    if (up < -rule.limit) up = -rule.limit;
    gate = gate / (1.0f + expf(-(gate * rule.factor)));
    up = up + 1.0f;
  } else {
    gate = gate / (1.0f + expf(-gate));
  }
  out[at] = rounded<T>(weight == 0 ? 0.0f : gate * up * weight);
}

__global__ void __launch_bounds__(kThreads)
    add_bias_rows(const float* weights, const float* bias, int32_t experts, int64_t rows, int64_t hidden,
                  float factor, float* residual) {
  await_inputs();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= rows * hidden) return;
  const int64_t m = at / hidden, i = at % hidden;
  float sum = 0;
  for (int32_t e = 0; e < experts; ++e) {
    const float weight = weights[m * (experts + 1) + e];
    if (weight != 0) sum = fmaf(weight, bias[e * hidden + i], sum);
  }
  residual[at] = residual[at] + sum * factor;
}

}  // namespace

void choose_experts(StreamView stream, const ExpertChoices& arguments) {
  if (arguments.rows == 0) return;
  CHECK(arguments.experts <= ExpertChoices::kMost && arguments.chosen <= arguments.experts,
        "{} of {} experts", arguments.chosen, arguments.experts);
  const LaunchShape shape{.grid_x = static_cast<unsigned>(arguments.rows),
                          .threads = kThreads,
                          .shared_bytes = (static_cast<size_t>(arguments.experts) + 1) * sizeof(float),
                          .early = true};
  if (arguments.type == WeightType::kBFloat16)
    launch(stream, shape, &choose_rows<bf16>, arguments);
  else
    launch(stream, shape, &choose_rows<float>, arguments);
}

void gate_experts(StreamView stream, const float* gate_up, const ExpertGate& gate, const float* weights,
                  const ExpertColumns& columns, int64_t rows, WeightType type, void* out) {
  const int64_t count = rows * columns.size();
  if (count == 0) return;
  const LaunchShape shape{
      .grid_x = static_cast<unsigned>((count + kThreads - 1) / kThreads), .threads = kThreads, .early = true};
  if (type == WeightType::kBFloat16)
    launch(stream, shape, &gate_expert_rows<bf16>, gate_up, gate, weights, columns, rows,
           static_cast<bf16*>(out));
  else
    launch(stream, shape, &gate_expert_rows<float>, gate_up, gate, weights, columns, rows,
           static_cast<float*>(out));
}

void add_expert_biases(StreamView stream, const float* weights, const float* bias, int32_t experts,
                       int64_t rows, int64_t hidden, float factor, float* residual) {
  const int64_t count = rows * hidden;
  if (count == 0) return;
  const LaunchShape shape{
      .grid_x = static_cast<unsigned>((count + kThreads - 1) / kThreads), .threads = kThreads, .early = true};
  launch(stream, shape, &add_bias_rows, weights, bias, experts, rows, hidden, factor, residual);
}

}  // namespace outrider::cuda
