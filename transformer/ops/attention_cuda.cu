// Paged attention on the device. A row's KV is cut at absolute positions; a split is reduced by one block and
// the splits are combined in ascending order, so a row's result depends on its own position only. Splits
// beyond the row's position return at once: the grid is sized for the longest sequence and fits every step of
// a graph.
#include "base/cuda_device.h"
#include "transformer/ops/cuda_ops.h"

namespace outrider::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / static_cast<int>(kWarp);
constexpr int kHeads = 4;  // query heads that share one read of the keys and values; one warp's softmax each
static_assert(kHeads == kWarps);
constexpr int kMaxHeadDim = 256;

// What a split leaves for the combination: [row][head][split] of (max, sum, head_dim weighted values).
__host__ __device__ inline int64_t record_floats(int64_t head_dim) { return head_dim + 2; }

struct Launch {
  DeviceBatch batch;
  KvLayer layer;
  AttentionArguments a;
  int64_t first_row = 0;  // of these blocks
  int32_t splits = 0;
};

__device__ __forceinline__ float* record(const Launch& l, int64_t row, int64_t head, int64_t split) {
  return l.a.workspace + ((row * l.a.heads + head) * l.splits + split) * record_floats(l.layer.head_dim);
}

// Eight neighbours of a key, or fewer at the end of a head.
template <class T>
struct Eight;
template <>
struct Eight<float> {
  float values[8];
  __device__ __forceinline__ void load(const float* from) {
    OUTRIDER_UNROLL
    for (int i = 0; i < 8; ++i) values[i] = from[i];
  }
};
template <>
struct Eight<bf16> {
  float values[8];
  __device__ __forceinline__ void load(const bf16* from) {
    const uint4 words = *reinterpret_cast<const uint4*>(from);
    const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
    OUTRIDER_UNROLL
    for (int i = 0; i < 4; ++i) {
      values[2 * i] = to_float(bf16{static_cast<uint16_t>(pairs[i])});
      values[2 * i + 1] = to_float(bf16{static_cast<uint16_t>(pairs[i] >> 16)});
    }
  }
};

__device__ __forceinline__ float element(float value) { return value; }
__device__ __forceinline__ float element(bf16 value) { return to_float(value); }

// scores[h][p] = q[h] . key(p) * scale for the positions of this split, -inf beyond the row's own. One fma
// chain over head_dim for every score.
template <class T>
__device__ void score(const Launch& l, const int32_t* table, int kv_head, int first, int last, const float* q,
                      float* scores) {
  const int d = l.layer.head_dim;
  const float scale = 1.0f / sqrtf(static_cast<float>(d));
  for (int i = static_cast<int>(threadIdx.x); i < kSplitPositions; i += kThreads) {
    const int p = first + i;
    float sums[kHeads] = {};
    if (p <= last) {
      const int64_t block = table[p / static_cast<int>(kBlockTokens)];
      const T* key = static_cast<const T*>(l.layer.keys) +
                     kv_offset(l.layer.kv_heads, kBlockTokens, d, block, kv_head, p % kBlockTokens);
      int j = 0;
      if (d % 8 == 0)
        for (; j < d; j += 8) {
          Eight<T> part;
          part.load(key + j);
          OUTRIDER_UNROLL
          for (int e = 0; e < 8; ++e) OUTRIDER_UNROLL
          for (int h = 0; h < kHeads; ++h)
            sums[h] = fmaf(part.values[e], q[h * kMaxHeadDim + j + e], sums[h]);
        }
      for (; j < d; ++j) OUTRIDER_UNROLL
      for (int h = 0; h < kHeads; ++h) sums[h] = fmaf(element(key[j]), q[h * kMaxHeadDim + j], sums[h]);
    }
    OUTRIDER_UNROLL
    for (int h = 0; h < kHeads; ++h)
      scores[h * kSplitPositions + i] = p <= last ? sums[h] * scale : -INFINITY;
  }
}

// One warp per head, in place: scores -> exp(score - max). Returns max and sum in every lane.
__device__ void soften(float* scores, float& max, float& sum) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  constexpr int kEach = kSplitPositions / static_cast<int>(kWarp);
  max = -INFINITY;
  OUTRIDER_UNROLL
  for (int j = 0; j < kEach; ++j) max = fmaxf(max, scores[j * static_cast<int>(kWarp) + lane]);
  for (int lanes = 16; lanes >= 1; lanes /= 2) max = fmaxf(max, shuffle_xor(max, lanes));
  sum = 0;
  OUTRIDER_UNROLL
  for (int j = 0; j < kEach; ++j) {
    float& at = scores[j * static_cast<int>(kWarp) + lane];
    at = at == -INFINITY ? 0.0f : expf(at - max);
    sum = sum + at;
  }
  for (int lanes = 16; lanes >= 1; lanes /= 2) sum = sum + shuffle_xor(sum, lanes);
}

// Grid: splits, KV heads of this rank, rows.
template <class T>
__global__ void __launch_bounds__(kThreads) attend_splits(const Launch l) {
  const int split = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
  const int64_t row = l.first_row + blockIdx.z;
  const int last = l.batch.positions[row], first = split * kSplitPositions;
  if (first > last) return;
  float* q = shared_memory<float>();         // [kHeads][kMaxHeadDim]
  float* scores = q + kHeads * kMaxHeadDim;  // [kHeads][kSplitPositions]
  const int d = l.layer.head_dim;
  const int32_t* table = l.batch.tables + l.batch.row_table[row] * l.batch.table_stride;
  const int group = (l.a.first_kv_head + kv_head) * l.a.heads_per_kv - l.a.first_head;
  const int begin = group < 0 ? 0 : group;
  const int end = group + l.a.heads_per_kv < l.a.heads ? group + l.a.heads_per_kv : l.a.heads;
  const int count = last - first < kSplitPositions ? last - first + 1 : kSplitPositions;
  const int tid = static_cast<int>(threadIdx.x);

  for (int head = begin; head < end; head += kHeads) {
    for (int i = tid; i < kHeads * d; i += kThreads) {
      const int h = i / d, j = i % d;
      q[h * kMaxHeadDim + j] = head + h < end ? l.a.q[row * l.a.q_stride + (head + h) * d + j] : 0.0f;
    }
    sync_block();
    score<T>(l, table, kv_head, first, last, q, scores);
    sync_block();
    const int own = tid / static_cast<int>(kWarp);
    float max = 0, sum = 0;
    soften(scores + own * kSplitPositions, max, sum);
    if (tid % static_cast<int>(kWarp) == 0 && head + own < end) {
      float* to = record(l, row - l.first_row, head + own, split);
      to[0] = max;
      to[1] = sum;
    }
    sync_block();
    for (int j = tid; j < d; j += kThreads) {
      float sums[kHeads] = {};
      for (int i = 0; i < count; ++i) {
        const int p = first + i;
        const int64_t block = table[p / static_cast<int>(kBlockTokens)];
        const float value = element(static_cast<const T*>(
            l.layer
                .values)[kv_offset(l.layer.kv_heads, kBlockTokens, d, block, kv_head, p % kBlockTokens) + j]);
        OUTRIDER_UNROLL
        for (int h = 0; h < kHeads; ++h) sums[h] = fmaf(scores[h * kSplitPositions + i], value, sums[h]);
      }
      OUTRIDER_UNROLL
      for (int h = 0; h < kHeads; ++h)
        if (head + h < end) record(l, row - l.first_row, head + h, split)[2 + j] = sums[h];
    }
    sync_block();
  }
}

// Grid: heads, rows.
template <class T>
__global__ void __launch_bounds__(kThreads) combine_splits(const Launch l) {
  const int head = static_cast<int>(blockIdx.x), d = l.layer.head_dim;
  const int64_t row = l.first_row + blockIdx.y;
  const int splits = split_count(l.batch.positions[row] + 1);
  float max = -INFINITY, sum = 0;
  for (int s = 0; s < splits; ++s) max = fmaxf(max, record(l, row - l.first_row, head, s)[0]);
  for (int s = 0; s < splits; ++s) {
    const float* from = record(l, row - l.first_row, head, s);
    sum = fmaf(from[1], expf(from[0] - max), sum);
  }
  for (int j = static_cast<int>(threadIdx.x); j < d; j += kThreads) {
    float value = 0;
    for (int s = 0; s < splits; ++s) {
      const float* from = record(l, row - l.first_row, head, s);
      value = fmaf(from[2 + j], expf(from[0] - max), value);
    }
    const float out = value / sum;
    const int64_t at = (row * l.a.heads + head) * d + j;
    if constexpr (sizeof(T) == 2)
      static_cast<T*>(l.a.out)[at] = to_bf16(out);
    else
      static_cast<T*>(l.a.out)[at] = out;
  }
}

template <class T>
__global__ void copy_block_elements(const KvLayer layer, int32_t from, int32_t to) {
  const int64_t size = layer.kv_heads * kBlockTokens * layer.head_dim;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= size) return;
  static_cast<T*>(layer.keys)[to * size + i] = static_cast<T*>(layer.keys)[from * size + i];
  static_cast<T*>(layer.values)[to * size + i] = static_cast<T*>(layer.values)[from * size + i];
}

template <class T>
__global__ void copy_token_elements(const KvLayer layer, int32_t from_block, int32_t from_slot,
                                    int32_t to_block, int32_t to_slot) {
  const int64_t head = blockIdx.x, d = layer.head_dim;
  const int64_t from = kv_offset(layer.kv_heads, kBlockTokens, d, from_block, head, from_slot);
  const int64_t to = kv_offset(layer.kv_heads, kBlockTokens, d, to_block, head, to_slot);
  for (int64_t i = threadIdx.x; i < d; i += kThreads) {
    static_cast<T*>(layer.keys)[to + i] = static_cast<T*>(layer.keys)[from + i];
    static_cast<T*>(layer.values)[to + i] = static_cast<T*>(layer.values)[from + i];
  }
}

}  // namespace

int64_t attention_workspace(int64_t heads, int64_t head_dim, int64_t max_positions) {
  return kAttentionRows * heads * split_count(static_cast<int32_t>(max_positions)) * record_floats(head_dim);
}

void attention(StreamView stream, const DeviceBatch& batch, const KvLayer& layer,
               const AttentionArguments& arguments) {
  CHECK(layer.head_dim <= kMaxHeadDim, "head_dim {}", layer.head_dim);
  if (arguments.heads == 0) return;
  Launch l{.batch = batch, .layer = layer, .a = arguments, .splits = split_count(arguments.max_positions)};
  constexpr size_t kShared = (kHeads * kMaxHeadDim + kHeads * kSplitPositions) * sizeof(float);
  for (; l.first_row < arguments.rows; l.first_row += kAttentionRows) {
    const int64_t left = arguments.rows - l.first_row;
    const auto rows = static_cast<unsigned>(left < kAttentionRows ? left : kAttentionRows);
    const LaunchShape shape{.grid_x = static_cast<unsigned>(l.splits),
                            .grid_y = static_cast<unsigned>(layer.kv_heads),
                            .grid_z = rows,
                            .threads = kThreads,
                            .shared_bytes = kShared};
    if (layer.type == KvType::kBFloat16)
      launch(stream, shape, &attend_splits<bf16>, l);
    else
      launch(stream, shape, &attend_splits<float>, l);
    const LaunchShape combine{
        .grid_x = static_cast<unsigned>(arguments.heads), .grid_y = rows, .threads = kThreads};
    if (arguments.out_type == WeightType::kBFloat16)
      launch(stream, combine, &combine_splits<bf16>, l);
    else
      launch(stream, combine, &combine_splits<float>, l);
  }
}

void copy_kv_block(StreamView stream, const KvLayer& layer, int32_t from, int32_t to) {
  const int64_t size = layer.kv_heads * kBlockTokens * layer.head_dim;
  if (size == 0) return;
  const LaunchShape shape{.grid_x = static_cast<unsigned>((size + kThreads - 1) / kThreads),
                          .threads = kThreads};
  if (layer.type == KvType::kBFloat16)
    launch(stream, shape, &copy_block_elements<bf16>, layer, from, to);
  else
    launch(stream, shape, &copy_block_elements<float>, layer, from, to);
}

void copy_kv_token(StreamView stream, const KvLayer& layer, int32_t from_block, int32_t from_slot,
                   int32_t to_block, int32_t to_slot) {
  if (layer.kv_heads == 0) return;
  const LaunchShape shape{.grid_x = static_cast<unsigned>(layer.kv_heads), .threads = kThreads};
  if (layer.type == KvType::kBFloat16)
    launch(stream, shape, &copy_token_elements<bf16>, layer, from_block, from_slot, to_block, to_slot);
  else
    launch(stream, shape, &copy_token_elements<float>, layer, from_block, from_slot, to_block, to_slot);
}

}  // namespace outrider::cuda
