// Mixtures of experts: the routing of tokens, and gating for the one wide MLP in which all experts lie side
// by side.
#include <algorithm>

#include "base/cuda_device.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/norm_row.h"

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

// Scores of one token's experts, in a block's shared memory.
struct Scores {
  float* logits;  // [experts]: then scores, where they are sigmoids; behind them the shared gate's
  float* counts;  // [experts]: what counts for the choice
  float* groups;  // [groups]: how good each is

  __device__ __forceinline__ explicit Scores(const ExpertChoices& a)
      : logits(shared_memory<float>()), counts(logits + a.experts + 1), groups(counts + a.experts) {}
  static size_t bytes(const ExpertChoices& a) {
    return static_cast<size_t>(2 * a.experts + 1 + a.groups) * sizeof(float);
  }
};

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// A group's value: its best expert's, or the sum of its best two.
__device__ __forceinline__ float value_of_group(const ExpertChoices& a, const float* counts, int group) {
  const int each = a.experts / a.groups;
  float best = -INFINITY, second = -INFINITY;
  for (int e = group * each; e < (group + 1) * each; ++e) {
    const float count = counts[e];
    if (count > best) {
      second = best;
      best = count;
    } else if (count > second) {
      second = count;
    }
  }
  return a.correction ? best + second : best;
}

// Whether fewer groups than are chosen are better, or as good with a lower id.
__device__ __forceinline__ bool is_group_chosen(const ExpertChoices& a, const float* groups, int group) {
  int better = 0;
  for (int g = 0; g < a.groups; ++g)
    if (groups[g] > groups[group] || (groups[g] == groups[group] && g < group)) ++better;
  return better < a.groups_chosen;
}

// By one warp. Ids are exact as floats.
__device__ __forceinline__ void choose(const ExpertChoices& a, const Scores& s, float* weights) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  float left[kEach], kept[kEach], best = -INFINITY, sum = 0;
  OUTRIDER_UNROLL
  for (int j = 0; j < kEach; ++j) {
    const int e = lane + j * kLanes;
    kept[j] = 0;
    left[j] = -INFINITY;
    if (e >= a.experts) continue;
    if (a.groups == 1 || is_group_chosen(a, s.groups, e * a.groups / a.experts)) left[j] = s.counts[e];
    best = fmaxf(best, s.logits[e]);
  }
  const float max = a.is_sigmoid ? 0.0f : max_of_warp(best);
  OUTRIDER_UNROLL
  for (int j = 0; j < kEach; ++j) {
    const int e = lane + j * kLanes;
    if (e < a.experts) sum = sum + (a.is_sigmoid ? s.logits[e] : expf(s.logits[e] - max));
  }
  const float total = sum_of_warp(sum);
  if (a.correction && !a.is_sigmoid) {  // corrections are added to shares; such routers have no groups
    OUTRIDER_UNROLL
    for (int j = 0; j < kEach; ++j) {
      const int e = lane + j * kLanes;
      if (e < a.experts) left[j] = expf(s.logits[e] - max) / total + a.correction[e];
    }
  }
  float chosen = a.is_sigmoid ? a.added : 0.0f;
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
    float share = 0;  // of the lane that has it
    OUTRIDER_UNROLL
    for (int j = 0; j < kEach; ++j) {
      if (static_cast<float>(lane + j * kLanes) != id) continue;
      const float logit = s.logits[lane + j * kLanes];
      share = a.is_sigmoid ? logit : expf(logit - max) / total;
      kept[j] = share;
      left[j] = -INFINITY;
    }
    chosen = chosen + max_of_warp(share);
  }
  // A score that is not finite.
  const bool is_lost = !(total < INFINITY && (total > 0 || a.is_sigmoid));
  OUTRIDER_UNROLL
  for (int j = 0; j < kEach; ++j) {
    const int e = lane + j * kLanes;
    if (e < a.experts) weights[e] = is_lost ? NAN : (a.renormalise ? kept[j] / chosen : kept[j]) * a.factor;
  }
  if (lane == 0)
    weights[a.experts] = !a.has_shared ? 0.0f : a.shared_gate ? sigmoid(s.logits[a.experts]) : 1.0f;
}

// A block for each token; a warp scores experts in turn.
template <class T>
__global__ void __launch_bounds__(kThreads) choose_rows(const ExpertChoices a) {
  await_inputs();
  const int64_t m = blockIdx.x;
  const T* x = static_cast<const T*>(a.x) + m * a.hidden;
  const int warp = static_cast<int>(threadIdx.x / kWarp), lane = static_cast<int>(threadIdx.x % kWarp);
  const Scores s(a);
  const int count = a.experts + (a.shared_gate ? 1 : 0);
  for (int e = warp; e < count; e += kWarps) {
    const float* row = e < a.experts ? a.router + e * a.hidden : a.shared_gate;
    float sum = 0;
    for (int64_t i = lane; i < a.hidden; i += kLanes) sum = fmaf(row[i], number(x[i]), sum);
    sum = sum_of_warp(sum);
    if (lane != 0) continue;
    const float logit = a.bias && e < a.experts ? sum + a.bias[e] : sum;
    const float score = a.is_sigmoid && e < a.experts ? sigmoid(logit) : logit;
    s.logits[e] = score;
    if (e < a.experts) s.counts[e] = a.correction ? score + a.correction[e] : score;
  }
  sync_block();
  if (a.groups > 1) {
    for (int g = static_cast<int>(threadIdx.x); g < a.groups; g += kThreads)
      s.groups[g] = value_of_group(a, s.counts, g);
    sync_block();
  }
  if (warp == 0) choose(a, s, a.weights + m * (a.experts + 1));
}

constexpr int kListThreads = 512;

// Which tiles of gate_up, and behind them which steps of down, some row needs.
struct NeededWork {
  const ChosenExperts& a;
  const int32_t* chosen;  // of each expert and the shared one

  __device__ __forceinline__ int32_t tiles() const { return (a.gate_up_rows + kTileRows - 1) / kTileRows; }
  __device__ __forceinline__ bool any_chosen(int32_t first, int32_t last) const {  // columns
    while (first < last) {
      const ExpertColumns::Run run = a.columns.run_of(first);
      if (chosen[run.expert] != 0) return true;
      first = run.end;
    }
    return false;
  }
  __device__ __forceinline__ bool is_tile_needed(int32_t tile) const {
    const int32_t first = tile * kTileRows, width = a.columns.size();
    const int32_t last = first + kTileRows < a.gate_up_rows ? first + kTileRows : a.gate_up_rows;
    if (last <= width) return any_chosen(first, last);
    if (first >= width) return any_chosen(first - width, last - width);
    return any_chosen(first, width) || any_chosen(0, last - width);
  }
  __device__ __forceinline__ int32_t slice_of(int32_t step) const {
    int32_t s = 0;
    while (step >= a.down_slices.first_step[s + 1]) ++s;
    return s;
  }
  __device__ __forceinline__ bool is_step_needed(int32_t step) const {
    const Slices& slices = a.down_slices;
    const int32_t s = slice_of(step);
    const int32_t first = slices.begin[s] + (step - slices.first_step[s]) * slices.step_columns;
    int32_t last = first + slices.step_columns;
    if (last > slices.begin[s + 1]) last = slices.begin[s + 1];
    if (!a.down_columns) return any_chosen(first, last);
    for (int32_t c = first; c < last; ++c)
      if (a.down_columns[c] >= 0 && chosen[a.columns.expert_of(a.down_columns[c])] != 0) return true;
    return false;
  }
  __device__ __forceinline__ bool operator()(int32_t item) const {
    return item < tiles() ? is_tile_needed(item) : is_step_needed(item - tiles());
  }
};

// One block; each thread has a run of tiles and steps.
__global__ void __launch_bounds__(kListThreads) list_chosen_work(const ChosenExperts a) {
  await_inputs();
  auto* found = shared_memory<int32_t>();     // by each thread
  int32_t* before = found + kListThreads;     // in front of the steps of each slice, and in all
  int32_t* chosen = before + kMaxSlices + 1;  // of each expert and the shared one: whether some row chose it
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t e = thread; e <= a.columns.experts; e += kListThreads) {
    bool is_chosen = false;
    for (int64_t m = 0; m < a.rows; ++m)
      is_chosen = is_chosen || a.weights[m * (a.columns.experts + 1) + e] != 0;
    chosen[e] = is_chosen ? 1 : 0;
  }
  sync_block();
  const NeededWork is_needed{a, chosen};
  const Slices& slices = a.down_slices;
  const int32_t tiles = is_needed.tiles(), items = tiles + slices.steps();
  const int32_t each = (items + kListThreads - 1) / kListThreads, begin = thread * each;
  const int32_t end = begin + each < items ? begin + each : items;
  int32_t own = 0;
  for (int32_t i = begin; i < end; ++i) own += is_needed(i) ? 1 : 0;
  found[thread] = own;
  sync_block();
  int32_t first = 0;
  for (int32_t t = 0; t < thread; ++t) first += found[t];
  for (int32_t i = begin, at = first; i < end; ++i) {
    for (int32_t s = 0; s < slices.count; ++s)
      if (i == tiles + slices.first_step[s]) before[s] = at;
    if (is_needed(i)) ++at;
  }
  if (thread == kListThreads - 1)
    for (int32_t s = 0; s <= slices.count; ++s)
      if (tiles + slices.first_step[s] == items) before[s] = first + own;
  sync_block();
  for (int32_t i = begin, at = first; i < end; ++i) {
    if (!is_needed(i)) continue;
    const int32_t step = i - tiles, s = step < 0 ? 0 : is_needed.slice_of(step);
    if (step < 0)
      a.tiles[at] = i;
    else
      a.steps[slices.first_step[s] + at - before[s]] = step - slices.first_step[s];
    ++at;
  }
  if (thread == 0) a.counts[0] = before[0];
  if (thread < slices.count) a.counts[1 + thread] = before[thread + 1] - before[thread];
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
  CHECK(arguments.groups > 0 && arguments.experts % arguments.groups == 0, "{} groups of {} experts",
        arguments.groups, arguments.experts);
  const LaunchShape shape{.grid_x = static_cast<unsigned>(arguments.rows),
                          .threads = kThreads,
                          .shared_bytes = Scores::bytes(arguments),
                          .early = true};
  if (arguments.type == WeightType::kBFloat16)
    launch(stream, shape, &choose_rows<bf16>, arguments);
  else
    launch(stream, shape, &choose_rows<float>, arguments);
}

void list_chosen(StreamView stream, const ChosenExperts& arguments) {
  const auto words = static_cast<size_t>(kListThreads + kMaxSlices + 1 + arguments.columns.experts + 1);
  launch(stream, {.threads = kListThreads, .shared_bytes = words * sizeof(int32_t), .early = true},
         &list_chosen_work, arguments);
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
