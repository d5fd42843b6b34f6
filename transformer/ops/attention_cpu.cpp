// Paged attention: any number of query rows, any mix of sequences. Each (row, head) is computed on its own,
// over absolute positions in order, so batch and chunking cannot change it.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "transformer/ops/attention_cpu.cpp"
#include <hwy/foreach_target.h>  // first: it re-includes this file for every instruction set

#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "transformer/ops/cpu_ops.h"

#ifndef OUTRIDER_ATTENTION_JOB
#define OUTRIDER_ATTENTION_JOB
namespace outrider {

// The query heads [first_head, first_head + heads) of one row that read one KV head.
struct AttentionJob {
  const KvLayerView* layer = nullptr;
  AttentionRow row;
  int64_t kv_head = 0;
  int64_t heads = 0;
  const float* q = nullptr;  // [heads, head_dim]
  float* out = nullptr;      // [heads, head_dim]
  float* scores = nullptr;   // [heads, score_stride]
  int64_t score_stride = 0;
};

}  // namespace outrider
#endif

HWY_BEFORE_NAMESPACE();
namespace outrider {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using F = hn::CappedTag<float, 16>;
using V = hn::Vec<F>;
constexpr int64_t kLanes = hn::MaxLanes(F());
constexpr int64_t kVectors = kBlockTokens / kLanes;

HWY_INLINE V load(const float* from) { return hn::Load(F(), from); }
HWY_INLINE V load(const bf16* from) {
  const hn::RebindToUnsigned<F> u32;
  const hn::Rebind<uint16_t, F> u16;
  const auto bits = hn::PromoteTo(u32, hn::Load(u16, reinterpret_cast<const uint16_t*>(from)));
  return hn::BitCast(F(), hn::ShiftLeft<16>(bits));
}

// scores of 16 positions for kHeads heads: dot products, one fma chain over head_dim per position.
template <int kHeads, class T>
HWY_INLINE void score_block(const T* keys, const float* q, int64_t head_dim, float scale, float* scores,
                            int64_t score_stride) {
  V sum[kHeads][kVectors];
  for (auto& row : sum)
    for (V& v : row) v = hn::Zero(F());
  for (int64_t d = 0; d < head_dim; ++d)
    for (int64_t i = 0; i < kVectors; ++i) {
      const V key = load(keys + d * kBlockTokens + i * kLanes);
      for (int h = 0; h < kHeads; ++h)
        sum[h][i] = hn::MulAdd(key, hn::Set(F(), q[h * head_dim + d]), sum[h][i]);
    }
  for (int h = 0; h < kHeads; ++h)
    for (int64_t i = 0; i < kVectors; ++i)
      hn::Store(hn::Mul(sum[h][i], hn::Set(F(), scale)), F(), scores + h * score_stride + i * kLanes);
}

// In place: scores -> exp(score - max), zero beyond the last position. Returns 1 / sum.
HWY_INLINE float softmax(float* scores, int64_t positions) {
  const int64_t padded = round_up(positions, kBlockTokens);
  for (int64_t t = positions; t < padded; ++t) scores[t] = -std::numeric_limits<float>::infinity();
  V best = hn::Set(F(), -std::numeric_limits<float>::infinity());
  for (int64_t t = 0; t < padded; t += kLanes) best = hn::Max(best, hn::Load(F(), scores + t));
  const V max = hn::MaxOfLanes(F(), best);
  V sum[kVectors];
  for (V& v : sum) v = hn::Zero(F());
  for (int64_t t = 0; t < padded; t += kBlockTokens)
    for (int64_t i = 0; i < kVectors; ++i) {
      float* at = scores + t + i * kLanes;
      const V shifted = hn::Sub(hn::Load(F(), at), max);
      // exp is taken of a clamped argument; lanes that are masked or far below become exact zeros.
      const V weight = hn::IfThenElseZero(hn::Gt(shifted, hn::Set(F(), -87.0f)),
                                          hn::Exp(F(), hn::Max(shifted, hn::Set(F(), -87.0f))));
      hn::Store(weight, F(), at);
      sum[i] = hn::Add(sum[i], weight);
    }
  HWY_ALIGN float lanes[kBlockTokens];
  for (int64_t i = 0; i < kVectors; ++i) hn::Store(sum[i], F(), lanes + i * kLanes);
  for (int width = 8; width >= 1; width /= 2)
    for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  return 1.0f / lanes[0];
}

// acc[h, :] += weights[h, t] * values[t, :] for the positions of one block, in order.
template <int kHeads, class T>
HWY_INLINE void add_values(const T* values, int64_t stride, int64_t tokens, const float* weights,
                           int64_t weight_stride, float* acc) {
  for (int64_t d = 0; d < stride; d += kLanes) {
    V sum[kHeads];
    for (int h = 0; h < kHeads; ++h) sum[h] = hn::Load(F(), acc + h * stride + d);
    for (int64_t t = 0; t < tokens; ++t) {
      const V value = load(values + t * stride + d);
      for (int h = 0; h < kHeads; ++h)
        sum[h] = hn::MulAdd(value, hn::Set(F(), weights[h * weight_stride + t]), sum[h]);
    }
    for (int h = 0; h < kHeads; ++h) hn::Store(sum[h], F(), acc + h * stride + d);
  }
}

template <int kHeads, class T>
void heads(const AttentionJob& job, int64_t first) {
  const KvLayerView& layer = *job.layer;
  const int64_t d = layer.head_dim, stride = layer.value_stride(), positions = job.row.position + 1;
  const float* q = job.q + first * d;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  for (int64_t t = 0; t < positions; t += kBlockTokens) {
    const int64_t slot = job.row.block_table[t / kBlockTokens] * layer.kv_heads + job.kv_head;
    const T* keys = reinterpret_cast<const T*>(layer.keys) + slot * d * kBlockTokens;
    score_block<kHeads>(keys, q, d, scale, job.scores + t, job.score_stride);
  }
  float norm[kHeads];
  for (int h = 0; h < kHeads; ++h) norm[h] = softmax(job.scores + h * job.score_stride, positions);
  float* acc = job.scores + kHeads * job.score_stride;  // [kHeads, stride]
  for (int64_t i = 0; i < kHeads * stride; ++i) acc[i] = 0;
  for (int64_t t = 0; t < positions; t += kBlockTokens) {
    const int64_t slot = job.row.block_table[t / kBlockTokens] * layer.kv_heads + job.kv_head;
    const T* values = reinterpret_cast<const T*>(layer.values) + slot * kBlockTokens * stride;
    add_values<kHeads>(values, stride, HWY_MIN(kBlockTokens, positions - t), job.scores + t, job.score_stride,
                       acc);
  }
  for (int h = 0; h < kHeads; ++h)
    for (int64_t i = 0; i < d; ++i) job.out[(first + h) * d + i] = acc[h * stride + i] * norm[h];
}

template <class T>
void all_heads(const AttentionJob& job) {
  int64_t h = 0;
  for (; h + 4 <= job.heads; h += 4) heads<4, T>(job, h);
  for (; h + 2 <= job.heads; h += 2) heads<2, T>(job, h);
  for (; h < job.heads; ++h) heads<1, T>(job, h);
}

void attend(const AttentionJob& job) {
  job.layer->type == KvType::kBFloat16 ? all_heads<bf16>(job) : all_heads<float>(job);
}

}  // namespace HWY_NAMESPACE
}  // namespace outrider
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace outrider {

HWY_EXPORT(attend);

AttentionScratch::AttentionScratch(int threads, int64_t heads_per_kv, int64_t max_positions, int64_t head_dim)
    : positions_(round_up(max_positions, kBlockTokens)) {
  const int64_t heads = heads_per_kv < 4 ? heads_per_kv : 4;  // a kernel call does at most four
  stride_ = heads * (positions_ + round_up(head_dim, 16));
  buffer_ = Buffer<float>(threads * stride_);
}

void attention(ThreadPool& pool, AttentionScratch& scratch, TensorView<const float, 2> q,
               const KvLayerView& layer, const AttentionShape& shape, std::span<const AttentionRow> rows,
               TensorView<float, 2> out) {
  const int64_t count = static_cast<int64_t>(rows.size()) * layer.kv_heads;
  const int64_t parts = std::min<int64_t>(pool.size(), count);
  pool.parallel_for(parts, 1, [&](int64_t first_part, int64_t last_part) {
    for (int64_t part = first_part; part < last_part; ++part)
      for (int64_t item = count * part / parts; item < count * (part + 1) / parts; ++item) {
        const int64_t m = item / layer.kv_heads, kv_head = item % layer.kv_heads;
        const int64_t group = (shape.first_kv_head + kv_head) * shape.heads_per_kv - shape.first_head;
        const int64_t begin = std::max<int64_t>(0, group);
        const int64_t end = std::min<int64_t>(shape.heads, group + shape.heads_per_kv);
        const AttentionRow& row = rows[static_cast<size_t>(m)];
        DCHECK(row.position < scratch.positions(), "position {}", row.position);
        HWY_DYNAMIC_DISPATCH(attend)
        ({.layer = &layer,
          .row = row,
          .kv_head = kv_head,
          .heads = end - begin,
          .q = q.data() + m * q.stride(0) + begin * layer.head_dim,
          .out = out.data() + m * out.stride(0) + begin * layer.head_dim,
          .scores = scratch.of_thread(part).data(),
          .score_stride = scratch.positions()});
      }
  });
}

}  // namespace outrider
#endif
