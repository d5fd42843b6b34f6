// Attention over KV in fp32: one block of threads for each split, KV head and row. For models in fp32 and
// exact fixtures.
#include "base/cuda_device.h"
#include "kernels/cuda/attention_splits.h"

namespace outrider::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / static_cast<int>(kWarp);
constexpr int kHeads = 4;  // query heads that share one read of the keys and values; one warp's softmax each
static_assert(kHeads == kWarps);
static_assert(kSplitPositions == kThreads);

struct Shared {
  float* q;         // [kHeads][head_dim]
  float* scores;    // [kHeads][kSplitPositions]
  float* partials;  // [kWarps][kHeads][value_dim]
};
size_t shared_bytes(const KvLayer& layer) {
  return static_cast<size_t>(kHeads * (layer.head_dim + kSplitPositions + kWarps * layer.value_dim())) *
         sizeof(float);
}

// The positions of a split that a row attends to, counted from the split's first.
struct Seen {
  int begin, end;
};

// scores[h][i] = of q[h] . key(first + i) for the positions of this split, -inf where the row does not look.
// One thread per position, one fma chain over head_dim for every score.
__device__ void score(const KvLayer& layer, const int32_t* table, const RowSlots& slots, int kv_head,
                      int first, Seen seen, const ScoreScale& scale, const Shared& s) {
  const int d = layer.head_dim, i = static_cast<int>(threadIdx.x);
  float sums[kHeads] = {};
  const bool is_seen = i >= seen.begin && i < seen.end;
  if (is_seen) {
    const int32_t slot = slots.slot(first + i), block = table[slot / static_cast<int>(kBlockTokens)];
    const float* key = static_cast<const float*>(layer.keys) +
                       layer.key_offset(block, kv_head, slot % static_cast<int>(kBlockTokens), 0);
    for (int j = 0; j < d; ++j) {
      const float element = key[j];
      OUTRIDER_UNROLL
      for (int h = 0; h < kHeads; ++h) sums[h] = fmaf(element, s.q[h * d + j], sums[h]);
    }
  }
  OUTRIDER_UNROLL
  for (int h = 0; h < kHeads; ++h) s.scores[h * kSplitPositions + i] = is_seen ? scale(sums[h]) : -INFINITY;
}

// One warp per head, in place: scores -> weights. Returns max and sum in every lane.
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
    at = softmax_weight(at, max);
    sum = sum + at;
  }
  for (int lanes = 16; lanes >= 1; lanes /= 2) sum = sum + shuffle_xor(sum, lanes);
}

// partials[warp][h][j] = sum over the warp's KV blocks of scores[h][i] * value(first + i)[j]. Warp w takes
// blocks w, w + 4, ... of the split, a lane one of head_dim at a time. What the row does not see has weights
// of zero, but the memory may hold anything.
__device__ void weigh_values(const KvLayer& layer, const int32_t* table, const RowSlots& slots, int kv_head,
                             int first, Seen seen, const Shared& s) {
  const int d = layer.value_dim(), warp = static_cast<int>(threadIdx.x / kWarp);
  // In fp32 what is part of a key lies where a value would.
  const auto* memory = static_cast<const float*>(layer.has_values() ? layer.values : layer.keys);
  constexpr int kTokens = static_cast<int>(kBlockTokens);
  for (int j = static_cast<int>(threadIdx.x % kWarp); j < d; j += static_cast<int>(kWarp)) {
    float sums[kHeads] = {};
    for (int begin = warp * kTokens; begin < seen.end; begin += kWarps * kTokens) {
      const int from = seen.begin > begin ? seen.begin - begin : 0;
      const auto value_at = [&](int slot) {
        return memory + layer.value_offset(table[slot / kTokens], kv_head, slot % kTokens, j);
      };
      const auto add = [&](int t, float value) {
        OUTRIDER_UNROLL
        for (int h = 0; h < kHeads; ++h)
          sums[h] = fmaf(s.scores[h * kSplitPositions + begin + t], value, sums[h]);
      };
      if (slots.is_in_place((first + begin) / kTokens)) {
        const float* values = value_at(first + begin);
        for (int t = from; t < kTokens && begin + t < seen.end; ++t) add(t, values[t * layer.head_dim]);
      } else {
        for (int t = from; t < kTokens && begin + t < seen.end; ++t)
          add(t, *value_at(slots.slot(first + begin + t)));
      }
    }
    OUTRIDER_UNROLL
    for (int h = 0; h < kHeads; ++h) s.partials[(warp * kHeads + h) * d + j] = sums[h];
  }
}

// Grid: splits, KV heads of this rank, rows.
__global__ void __launch_bounds__(kThreads) attend_rows(const AttentionTurn turn) {
  await_inputs();
  const int split = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
  const int32_t row = turn.first_row + static_cast<int32_t>(blockIdx.z);
  const int last = turn.batch.positions[row], first = split * kSplitPositions;
  if (first > last || split < turn.first_split(last)) return;
  Shared s{.q = shared_memory<float>()};
  const int d = turn.layer.head_dim, value_dim = turn.layer.value_dim(), end = turn.end_head(kv_head);
  s.scores = s.q + kHeads * d;
  s.partials = s.scores + kHeads * kSplitPositions;
  const int32_t* table = turn.batch.tables + turn.batch.row_table[row] * turn.batch.table_stride;
  const RowSlots slots = slots_of(turn.batch, row);
  const Seen seen{turn.first_of(last) - first,
                  last - first < kSplitPositions ? last - first + 1 : kSplitPositions};
  const ScoreScale scale(turn);
  const int tid = static_cast<int>(threadIdx.x), own = tid / static_cast<int>(kWarp);

  for (int head = turn.begin_head(kv_head); head < end; head += kHeads) {
    for (int i = tid; i < kHeads * d; i += kThreads) {
      const int h = i / d, j = i % d;
      s.q[h * d + j] = head + h < end ? turn.a.q[row * turn.a.q_stride + (head + h) * d + j] : 0.0f;
    }
    sync_block();
    score(turn.layer, table, slots, kv_head, first, seen, scale, s);
    sync_block();
    float max = 0, sum = 0;
    soften(s.scores + own * kSplitPositions, max, sum);
    if (tid % static_cast<int>(kWarp) == 0 && head + own < end) {
      float* to = turn.max_and_sum(row, head + own, split);
      to[0] = max;
      to[1] = sum;
    }
    sync_block();
    weigh_values(turn.layer, table, slots, kv_head, first, seen, s);
    sync_block();
    for (int i = tid; i < kHeads * value_dim; i += kThreads) {
      const int h = i / value_dim, j = i % value_dim;
      if (head + h >= end) continue;
      float values[kMaxSlices];
      OUTRIDER_UNROLL
      for (int w = 0; w < kWarps; ++w) values[w] = s.partials[(w * kHeads + h) * value_dim + j];
      turn.weighted(row, head + h, split)[j] = tree_sum(values, kWarps);
    }
    sync_block();
  }
}

}  // namespace

void allow_attention_in_floats(int64_t bytes) {
  allow_shared_bytes(&attend_rows, static_cast<size_t>(bytes));
}

void attend_in_floats(StreamView stream, const AttentionTurn& turn) {
  launch(stream,
         {.grid_x = static_cast<unsigned>(turn.splits),
          .grid_y = static_cast<unsigned>(turn.layer.kv_heads),
          .grid_z = static_cast<unsigned>(turn.rows),
          .threads = kThreads,
          .shared_bytes = shared_bytes(turn.layer),
          .early = true},
         &attend_rows, turn);
}

}  // namespace outrider::cuda
