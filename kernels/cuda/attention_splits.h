// Shared by the attention kernels: which rows and heads a launch covers, and where splits store their partial
// results for the combination. Included by kernels only.
#pragma once

#include "base/cuda_device.h"
#include "kernels/cuda/row_slots.h"

namespace outrider::cuda {

constexpr int32_t kMaxTurnRows = 256;

// One turn: rows [first_row, first_row + rows).
struct AttentionTurn {
  DeviceBatch batch;
  KvLayer layer;
  AttentionArguments a;
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t splits = 0;  // splits for which there is memory

  // Index of (row, head, split) among the results of splits.
  OUTRIDER_SHARED_CODE int64_t split_at(int32_t row, int32_t head, int32_t split) const {
    return (static_cast<int64_t>(row - first_row) * a.heads + head) * splits + split;
  }
  // The largest score of a split and the sum of its exponentials, then the weighted values.
  OUTRIDER_SHARED_CODE float* max_and_sum(int32_t row, int32_t head, int32_t split) const {
    return a.workspace + 2 * split_at(row, head, split);
  }
  OUTRIDER_SHARED_CODE float* weighted(int32_t row, int32_t head, int32_t split) const {
    return a.workspace + 2 * a.turn_rows * a.heads * splits + split_at(row, head, split) * layer.value_dim();
  }
  // The first position that a row at `position` attends to, and the split it lies in.
  OUTRIDER_SHARED_CODE int32_t first_of(int32_t position) const { return first_visible(position, a.window); }
  OUTRIDER_SHARED_CODE int32_t first_split(int32_t position) const {
    return first_of(position) / kSplitPositions;
  }
  // The rank's query heads that read KV head `kv_head`.
  OUTRIDER_SHARED_CODE int32_t begin_head(int32_t kv_head) const {
    const int32_t begin = (a.first_kv_head + kv_head) * a.heads_per_kv - a.first_head;
    return begin < 0 ? 0 : begin;
  }
  OUTRIDER_SHARED_CODE int32_t end_head(int32_t kv_head) const {
    const int32_t end = (a.first_kv_head + kv_head + 1) * a.heads_per_kv - a.first_head;
    return end < a.heads ? end : a.heads;
  }
  // Where more heads share a KV head than a tile has columns, they are several groups.
  OUTRIDER_SHARED_CODE int32_t groups() const {
    const int32_t most = a.heads < a.heads_per_kv ? a.heads : a.heads_per_kv;
    return (most + a.tile_heads - 1) / a.tile_heads;
  }
};

// Every split of every row of the turn; KV in bf16 on tensor cores, KV in fp32 by plain kernels.
void attend_on_tensor_cores(StreamView stream, const AttentionTurn& turn);
void attend_in_floats(StreamView stream, const AttentionTurn& turn);
void allow_attention_in_floats(int64_t shared_bytes);

// Turns a product of query and key into a score: scaled, and soft-capped if `cap` is above 0.
struct ScoreScale {
  float factor, cap;

  __device__ __forceinline__ explicit ScoreScale(const AttentionTurn& turn)
      : factor(turn.a.scale > 0 ? turn.a.scale : 1.0f / sqrtf(static_cast<float>(turn.layer.head_dim))),
        cap(turn.a.cap) {}
  __device__ __forceinline__ float operator()(float product) const {
    const float score = product * factor;
    return cap > 0 ? cap * tanhf(score / cap) : score;
  }
};

// exp(score - max), 0 where there is no score.
__device__ __forceinline__ float softmax_weight(float score, float max) {
  return score == -INFINITY ? 0.0f : expf(score - max);
}

}  // namespace outrider::cuda
