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

// Two neighbours of a value.
__device__ __forceinline__ void load_two(const float* from, float (&to)[2]) {
  to[0] = from[0];
  to[1] = from[1];
}
__device__ __forceinline__ void load_two(const bf16* from, float (&to)[2]) {
  const uint32_t pair = *reinterpret_cast<const uint32_t*>(from);
  to[0] = to_float(bf16{static_cast<uint16_t>(pair)});
  to[1] = to_float(bf16{static_cast<uint16_t>(pair >> 16)});
}

__device__ __forceinline__ float element(float value) { return value; }
__device__ __forceinline__ float element(bf16 value) { return to_float(value); }

__device__ __forceinline__ void add_dots(const float (&key)[8], const float* q, float (&sums)[kHeads]) {
  OUTRIDER_UNROLL
  for (int e = 0; e < 8; ++e) {
    OUTRIDER_UNROLL
    for (int h = 0; h < kHeads; ++h) sums[h] = fmaf(key[e], q[h * kMaxHeadDim + e], sums[h]);
  }
}

// scores[h][i] = q[h] . key(first + i) * scale for the positions of this split, -inf beyond the row's own.
// One thread per position, one fma chain over head_dim for every score. Keys come in runs of 64 bytes (bf16),
// so that enough loads are on their way.
template <class T>
__device__ void score(const Launch& l, const int32_t* table, int kv_head, int first, int last, const float* q,
                      float* scores) {
  static_assert(kSplitPositions == kThreads);
  const int d = l.layer.head_dim, i = static_cast<int>(threadIdx.x), p = first + i;
  float sums[kHeads] = {};
  if (p <= last) {
    const int64_t block = table[p / static_cast<int>(kBlockTokens)];
    const T* key = static_cast<const T*>(l.layer.keys) +
                   kv_offset(l.layer.kv_heads, kBlockTokens, d, block, kv_head, p % kBlockTokens);
    int j = 0;
    if (d % 8 == 0) {
      constexpr int kRun = 4;
      for (; j + 8 * kRun <= d; j += 8 * kRun) {
        Eight<T> parts[kRun];
        OUTRIDER_UNROLL
        for (int r = 0; r < kRun; ++r) parts[r].load(key + j + 8 * r);
        OUTRIDER_UNROLL
        for (int r = 0; r < kRun; ++r) add_dots(parts[r].values, q + j + 8 * r, sums);
      }
      for (; j < d; j += 8) {
        Eight<T> part;
        part.load(key + j);
        add_dots(part.values, q + j, sums);
      }
    }
    for (; j < d; ++j) OUTRIDER_UNROLL
    for (int h = 0; h < kHeads; ++h) sums[h] = fmaf(element(key[j]), q[h * kMaxHeadDim + j], sums[h]);
  }
  const float scale = 1.0f / sqrtf(static_cast<float>(d));
  OUTRIDER_UNROLL
  for (int h = 0; h < kHeads; ++h) scores[h * kSplitPositions + i] = p <= last ? sums[h] * scale : -INFINITY;
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

// partial[h][j] of each warp = sum over its KV blocks of scores[h][i] * value(first + i)[j]. Warp w takes
// blocks w, w + 4, ... of the split, every lane two neighbours of head_dim at a time; the warps' sums are
// added in the tree.
template <class T>
__device__ void weigh_values(const Launch& l, const int32_t* table, int kv_head, int first, int count,
                             const float* scores, float* partials) {
  const int d = l.layer.head_dim, lane = static_cast<int>(threadIdx.x % kWarp);
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  constexpr int kTokens = static_cast<int>(kBlockTokens);
  for (int j = 2 * lane; j < d; j += 2 * static_cast<int>(kWarp)) {
    float sums[kHeads][2] = {};
    for (int begin = warp * kTokens; begin < count; begin += kWarps * kTokens) {
      const int64_t block = table[(first + begin) / kTokens];
      const T* values = static_cast<const T*>(l.layer.values) +
                        kv_offset(l.layer.kv_heads, kBlockTokens, d, block, kv_head, 0) + j;
      // Beyond the row's position the weights are zero, but the memory may hold anything.
      float loaded[kTokens][2] = {};
      OUTRIDER_UNROLL
      for (int t = 0; t < kTokens; ++t)
        if (begin + t < count) load_two(values + t * d, loaded[t]);
      OUTRIDER_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        OUTRIDER_UNROLL
        for (int h = 0; h < kHeads; ++h) {
          const float weight = scores[h * kSplitPositions + begin + t];
          sums[h][0] = fmaf(weight, loaded[t][0], sums[h][0]);
          sums[h][1] = fmaf(weight, loaded[t][1], sums[h][1]);
        }
      }
    }
    OUTRIDER_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      partials[(warp * kHeads + h) * kMaxHeadDim + j] = sums[h][0];
      partials[(warp * kHeads + h) * kMaxHeadDim + j + 1] = sums[h][1];
    }
  }
}

// Grid: splits, KV heads of this rank, rows.
template <class T>
__global__ void __launch_bounds__(kThreads) attend_splits(const Launch l) {
  const int split = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
  const int64_t row = l.first_row + blockIdx.z;
  const int last = l.batch.positions[row], first = split * kSplitPositions;
  if (first > last) return;
  float* q = shared_memory<float>();                    // [kHeads][kMaxHeadDim]
  float* scores = q + kHeads * kMaxHeadDim;             // [kHeads][kSplitPositions]
  float* partials = scores + kHeads * kSplitPositions;  // [kWarps][kHeads][kMaxHeadDim]
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
    weigh_values<T>(l, table, kv_head, first, count, scores, partials);
    sync_block();
    for (int i = tid; i < kHeads * d; i += kThreads) {
      const int h = i / d, j = i % d;
      if (head + h >= end) continue;
      float values[kMaxSlices];
      OUTRIDER_UNROLL
      for (int w = 0; w < kWarps; ++w) values[w] = partials[(w * kHeads + h) * kMaxHeadDim + j];
      record(l, row - l.first_row, head + h, split)[2 + j] = tree_sum(values, kWarps);
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
  constexpr size_t kShared = ((1 + kWarps) * kHeads * kMaxHeadDim + kHeads * kSplitPositions) * sizeof(float);
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
