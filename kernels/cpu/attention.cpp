// Paged attention: any number of query rows, any mix of sequences. The queries of several rows of one text,
// and of the heads that share a KV head, go over keys and values together. Every query keeps its own sums,
// over absolute positions in order, so company changes no bit.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cpp"
#include <hwy/foreach_target.h>  // first: it re-includes this file for every instruction set

#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/cpu/cpu_ops.h"

#ifndef OUTRIDER_ATTENTION_JOB
#define OUTRIDER_ATTENTION_JOB
namespace outrider {

constexpr int kMaxQueries = AttentionScratch::kQueries;

// Up to kMaxQueries queries of one text and one KV head: query i is head i % heads of row i / heads, rows
// having consecutive positions, the same one, or tails in one tree.
struct AttentionJob {
  const KvLayerView* layer = nullptr;
  const AttentionRow* first_row = nullptr;
  int64_t kv_head = 0;
  int rows = 0, heads = 0;
  const float* q = nullptr;  // [rows][heads][head_dim], q_stride from row to row
  int64_t q_stride = 0;
  float* out = nullptr;  // the same, with out_stride
  int64_t out_stride = 0;
  float scale = 1, cap = 0;
  int64_t window = 0;
  const float* sinks = nullptr;  // [heads], or none
  float* scratch = nullptr;  // queries [head_dim][kMaxQueries], sums [value_stride / 16][kMaxQueries][16],
                             // scores [block][kMaxQueries][kBlockTokens]

  bool has_tails() const { return first_row[rows - 1].has_tail(); }
  // A row sees positions [begin(row), positions(row)).
  int64_t positions(int row) const { return first_row[row].position + 1; }
  int64_t begin(int row) const { return window > 0 ? std::max<int64_t>(0, positions(row) - window) : 0; }
  // Blocks that every row sees whole; where there are none, an empty range that begins at or behind every
  // row's first position.
  struct Blocks {
    int64_t begin = 0, end = 0;
  };
  Blocks shared_blocks() const {
    int64_t first = 0, end = has_tails() ? first_row->tail_begin : positions(0);
    for (int row = 0; row < rows; ++row) {
      first = std::max(first, begin(row));
      end = std::min(end, positions(row));
    }
    const int64_t first_block = kv_blocks_for(first);
    return {first_block, std::max(first_block, end / kBlockTokens)};
  }
  // The first block that some row sees a part of.
  int64_t first_block() const {
    int64_t first = begin(0);
    for (int row = 1; row < rows; ++row) first = std::min(first, begin(row));
    return first / kBlockTokens;
  }
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

// How many queries go together: a register for each one's sum, and some for keys and broadcasts.
constexpr int kTogether = kLanes >= 16 ? 16 : 4;
static_assert(kTogether <= kMaxQueries);

struct Areas {
  explicit Areas(const AttentionJob& job)
      : queries(job.scratch),
        sums(queries + job.layer->head_dim * kMaxQueries),
        scores(sums + job.layer->value_stride() * kMaxQueries) {}
  float *queries, *sums, *scores;
};

template <class T>
HWY_INLINE const T* block_of(const AttentionJob& job, const std::byte* base, int64_t block, int64_t size) {
  return reinterpret_cast<const T*>(base) +
         (job.first_row->block_table[block] * job.layer->kv_heads + job.kv_head) * size;
}

// Scores of queries [first, first + kCount) in blocks [begin, end): dot products, one fma chain over head_dim
// per position, scaled and capped.
template <int kCount, class T>
HWY_INLINE void score(const AttentionJob& job, const Areas& areas, int first, int64_t begin, int64_t end) {
  const int64_t head_dim = job.layer->head_dim;
  const V scale = hn::Set(F(), job.scale), cap = hn::Set(F(), job.cap);
  for (int64_t block = begin; block < end; ++block) {
    const T* keys = block_of<T>(job, job.layer->keys, block, head_dim * kBlockTokens);
    float* out = areas.scores + (block * kMaxQueries + first) * kBlockTokens;
    for (int64_t i = 0; i < kVectors; ++i) {
      V sum[kCount];
      for (V& v : sum) v = hn::Zero(F());
      const float* q = areas.queries + first;
      for (int64_t d = 0; d < head_dim; ++d, q += kMaxQueries) {
        const V key = load(keys + d * kBlockTokens + i * kLanes);
        for (int j = 0; j < kCount; ++j) sum[j] = hn::MulAdd(key, hn::Set(F(), q[j]), sum[j]);
      }
      for (V& v : sum) v = hn::Mul(v, scale);
      if (job.cap > 0)
        for (V& v : sum) v = hn::Mul(cap, hn::Tanh(F(), hn::Div(v, cap)));
      for (int j = 0; j < kCount; ++j) hn::Store(sum[j], F(), out + j * kBlockTokens + i * kLanes);
    }
  }
}

// exp of a clamped argument; what is masked or far below becomes an exact zero.
HWY_INLINE V weights_of(V shifted) {
  const V least = hn::Set(F(), -87.0f);
  return hn::IfThenElseZero(hn::Gt(shifted, least), hn::Exp(F(), hn::Max(shifted, least)));
}

// In place: scores of one query at positions [begin, end) -> exp(score - max), zero in the rest of the first
// and last block. Returns 1 / sum, of the sink's too where there is one.
HWY_INLINE float softmax(float* scores, int64_t begin, int64_t end, const float* sink) {
  constexpr int64_t kStride = kMaxQueries * kBlockTokens;
  const int64_t first = begin / kBlockTokens, blocks = kv_blocks_for(end);
  const auto hide = [&](int64_t from, int64_t to) {
    for (int64_t t = from; t < to; ++t)
      scores[t / kBlockTokens * kStride + t % kBlockTokens] = -std::numeric_limits<float>::infinity();
  };
  hide(first * kBlockTokens, begin);
  hide(end, blocks * kBlockTokens);
  V best = hn::Set(F(), -std::numeric_limits<float>::infinity());
  for (int64_t block = first; block < blocks; ++block)
    for (int64_t i = 0; i < kVectors; ++i)
      best = hn::Max(best, hn::Load(F(), scores + block * kStride + i * kLanes));
  V max = hn::MaxOfLanes(F(), best);
  if (sink) max = hn::Max(max, hn::Set(F(), *sink));
  V sum[kVectors];
  for (V& v : sum) v = hn::Zero(F());
  for (int64_t block = first; block < blocks; ++block)
    for (int64_t i = 0; i < kVectors; ++i) {
      float* at = scores + block * kStride + i * kLanes;
      const V weight = weights_of(hn::Sub(hn::Load(F(), at), max));
      hn::Store(weight, F(), at);
      sum[i] = hn::Add(sum[i], weight);
    }
  HWY_ALIGN float lanes[kBlockTokens];
  for (int64_t i = 0; i < kVectors; ++i) hn::Store(sum[i], F(), lanes + i * kLanes);
  for (int width = 8; width >= 1; width /= 2)
    for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  if (sink) lanes[0] += hn::GetLane(weights_of(hn::Sub(hn::Set(F(), *sink), max)));
  return 1.0f / lanes[0];
}

// sums[q, :] += weights[q, t] * values[t, :] for queries [first, first + kCount) and positions [begin, end),
// in order.
template <int kCount, class T>
HWY_INLINE void add_values(const AttentionJob& job, const Areas& areas, int first, int64_t begin,
                           int64_t end) {
  const int64_t stride = job.layer->value_stride();
  for (int64_t d = 0; d < stride; d += kLanes) {
    float* out = areas.sums + (d / 16 * kMaxQueries + first) * 16 + d % 16;
    V sum[kCount];
    for (int j = 0; j < kCount; ++j) sum[j] = hn::Load(F(), out + j * 16);
    for (int64_t block = begin / kBlockTokens; block * kBlockTokens < end; ++block) {
      const int64_t from = HWY_MAX(int64_t{0}, begin - block * kBlockTokens);
      const T* values = block_of<T>(job, job.layer->values, block, stride * kBlockTokens) + from * stride + d;
      const float* weights = areas.scores + (block * kMaxQueries + first) * kBlockTokens;
      const int64_t tokens = HWY_MIN(kBlockTokens, end - block * kBlockTokens);
      for (int64_t t = from; t < tokens; ++t, values += stride) {
        const V value = load(values);
        for (int j = 0; j < kCount; ++j)
          sum[j] = hn::MulAdd(value, hn::Set(F(), weights[j * kBlockTokens + t]), sum[j]);
      }
    }
    for (int j = 0; j < kCount; ++j) hn::Store(sum[j], F(), out + j * 16);
  }
}

// Calls op(count, first) until queries [first, first + count) are done, as many at a time as go together.
template <int kCount, class Op>
HWY_INLINE void for_queries(int first, int count, Op op) {
  for (; count >= kCount; first += kCount, count -= kCount) op(std::integral_constant<int, kCount>(), first);
  if constexpr (kCount > 1) for_queries<kCount / 2>(first, count, op);
}

// Adds the values of one row's positions [begin, its own], one by one where they lie.
template <int kCount, class T>
HWY_INLINE void add_tail_values(const AttentionJob& job, const Areas& areas, int row, int first,
                                int64_t begin) {
  const int64_t stride = job.layer->value_stride(), end = job.positions(row);
  for (int64_t d = 0; d < stride; d += kLanes) {
    float* out = areas.sums + (d / 16 * kMaxQueries + first) * 16 + d % 16;
    V sum[kCount];
    for (int j = 0; j < kCount; ++j) sum[j] = hn::Load(F(), out + j * 16);
    for (int64_t p = begin; p < end; ++p) {
      const int64_t slot = job.first_row[row].slot(p);
      const V value = load(block_of<T>(job, job.layer->values, slot / kBlockTokens, stride * kBlockTokens) +
                           slot % kBlockTokens * stride + d);
      const float* weights =
          areas.scores + (p / kBlockTokens * kMaxQueries + first) * kBlockTokens + p % kBlockTokens;
      for (int j = 0; j < kCount; ++j)
        sum[j] = hn::MulAdd(value, hn::Set(F(), weights[j * kBlockTokens]), sum[j]);
    }
    for (int j = 0; j < kCount; ++j) hn::Store(sum[j], F(), out + j * 16);
  }
}

// Scores of a tree's rows: of all slots they see up to the last row's, a score being a function of query and
// key alone; then each row's own in the order of its positions.
template <class T>
HWY_INLINE void score_tree(const AttentionJob& job, const Areas& areas) {
  const AttentionRow& last = job.first_row[job.rows - 1];
  for_queries<kTogether>(0, job.rows * job.heads, [&](auto count, int first) HWY_ATTR {
    score<count(), T>(job, areas, first, job.first_block(), kv_blocks_for(last.slot(last.position) + 1));
  });
  const auto at = [](int64_t i) { return i / kBlockTokens * kMaxQueries * kBlockTokens + i % kBlockTokens; };
  for (int row = 0; row < job.rows; ++row)
    for (int query = row * job.heads; query < (row + 1) * job.heads; ++query) {
      float* scores = areas.scores + query * kBlockTokens;
      for (int64_t p = std::max(last.tail_begin, job.first_block() * kBlockTokens); p < job.positions(row);
           ++p)  // from slots at or behind p
        scores[at(p)] = scores[at(job.first_row[row].slot(p))];
    }
}

template <class T>
HWY_INLINE void add_tree_values(const AttentionJob& job, const Areas& areas) {
  const auto shared = job.shared_blocks();
  const int64_t begin = shared.begin * kBlockTokens, end = shared.end * kBlockTokens;
  for (int row = 0; row < job.rows && begin < end; ++row)
    if (job.begin(row) < begin)
      for_queries<kTogether>(row * job.heads, job.heads, [&](auto count, int first) HWY_ATTR {
        add_values<count(), T>(job, areas, first, job.begin(row), begin);
      });
  for_queries<kTogether>(0, job.rows * job.heads, [&](auto count, int first) HWY_ATTR {
    add_values<count(), T>(job, areas, first, begin, end);
  });
  for (int row = 0; row < job.rows; ++row)
    for_queries<kTogether>(row * job.heads, job.heads, [&](auto count, int first) HWY_ATTR {
      add_tail_values<count(), T>(job, areas, row, first, begin < end ? end : job.begin(row));
    });
}

// Calls op(count, first, begin, end) for ranges of positions: each row's own in front of the blocks that
// every row sees whole, all queries over those blocks, then each row's own over the rest.
template <class Op>
HWY_INLINE void for_positions(const AttentionJob& job, Op op) {
  const auto shared = job.shared_blocks();
  const int64_t begin = shared.begin * kBlockTokens, end = shared.end * kBlockTokens;
  const auto own = [&](int row, int64_t from, int64_t to) HWY_ATTR {
    if (from < to)
      for_queries<kTogether>(row * job.heads, job.heads,
                             [&](auto count, int first) HWY_ATTR { op(count, first, from, to); });
  };
  for (int row = 0; row < job.rows && begin < end; ++row) own(row, job.begin(row), begin);
  if (begin < end)
    for_queries<kTogether>(0, job.rows * job.heads,
                           [&](auto count, int first) HWY_ATTR { op(count, first, begin, end); });
  for (int row = 0; row < job.rows; ++row) own(row, begin < end ? end : job.begin(row), job.positions(row));
}

template <class T>
HWY_INLINE void attend_rows(const AttentionJob& job) {
  const int64_t head_dim = job.layer->head_dim;
  const Areas areas(job);
  const auto for_each_query = [&](auto op) HWY_ATTR {
    for (int row = 0; row < job.rows; ++row)
      for (int head = 0; head < job.heads; ++head) op(row, head, row * job.heads + head);
  };
  for_each_query([&](int row, int head, int query) HWY_ATTR {
    const float* q = job.q + row * job.q_stride + head * head_dim;
    for (int64_t d = 0; d < head_dim; ++d) areas.queries[d * kMaxQueries + query] = q[d];
  });
  const bool is_tree = job.has_tails();
  if (is_tree)
    score_tree<T>(job, areas);
  else
    for_positions(job, [&](auto count, int first, int64_t begin, int64_t end) HWY_ATTR {
      score<count(), T>(job, areas, first, begin / kBlockTokens, kv_blocks_for(end));
    });
  float norm[kMaxQueries];
  for_each_query([&](int row, int head, int query) HWY_ATTR {
    norm[query] = softmax(areas.scores + query * kBlockTokens, job.begin(row), job.positions(row),
                          job.sinks ? job.sinks + head : nullptr);
  });
  for (int64_t i = 0; i < job.layer->value_stride() * kMaxQueries; ++i) areas.sums[i] = 0;
  if (is_tree)
    add_tree_values<T>(job, areas);
  else
    for_positions(job, [&](auto count, int first, int64_t begin, int64_t end)
                           HWY_ATTR { add_values<count(), T>(job, areas, first, begin, end); });
  for_each_query([&](int row, int head, int query) HWY_ATTR {
    float* out = job.out + row * job.out_stride + head * head_dim;
    for (int64_t d = 0; d < head_dim; ++d)
      out[d] = areas.sums[(d / 16 * kMaxQueries + query) * 16 + d % 16] * norm[query];
  });
}

void attend(const AttentionJob& job) {
  job.layer->type == KvType::kBFloat16 ? attend_rows<bf16>(job) : attend_rows<float>(job);
}

}  // namespace HWY_NAMESPACE
}  // namespace outrider
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace outrider {

HWY_EXPORT(attend);

AttentionScratch::AttentionScratch(int threads, int64_t max_positions, int64_t head_dim)
    : stride_(kQueries * (head_dim + round_up(head_dim, 16) + round_up(max_positions, kBlockTokens))),
      buffer_(threads * stride_) {}

namespace {

// Rows of one text at consecutive positions or at one, or of one slice with a tree, in the batch from `first`
// on.
int64_t run_length(std::span<const AttentionRow> rows, int64_t first, int64_t longest) {
  int64_t length = 1;
  const auto at = [&](int64_t i) -> const AttentionRow& { return rows[static_cast<size_t>(first + i)]; };
  const bool is_tree = at(0).tail_slots != nullptr;
  while (length < longest && first + length < static_cast<int64_t>(rows.size()) &&
         at(length).block_table == at(0).block_table && (at(length).tail_slots != nullptr) == is_tree &&
         (is_tree || at(length).position == at(length - 1).position ||
          at(length).position == at(length - 1).position + 1))
    ++length;
  return length;
}

}  // namespace

void attention(ThreadPool& pool, AttentionScratch& scratch, TensorView<const float, 2> q,
               const KvLayerView& layer, const AttentionShape& shape, std::span<const AttentionRow> rows,
               TensorView<float, 2> out) {
  const auto row_count = static_cast<int64_t>(rows.size());
  // Fewer rows together than could be, rather than a thread without work.
  const int64_t rows_together = std::clamp<int64_t>(row_count * layer.kv_heads / pool.size(), 1,
                                                    std::max<int64_t>(1, kMaxQueries / shape.heads_per_kv));
  auto& jobs = scratch.jobs;
  jobs.clear();
  for (int64_t m = 0; m < row_count;) {
    const int64_t length = run_length(rows, m, rows_together);
    for (int64_t kv_head = 0; kv_head < layer.kv_heads; ++kv_head) {
      const int64_t group = (shape.first_kv_head + kv_head) * shape.heads_per_kv - shape.first_head;
      const int64_t end = std::min<int64_t>(shape.heads, group + shape.heads_per_kv);
      for (int64_t head = std::max<int64_t>(0, group); head < end; head += kMaxQueries)
        jobs.push_back({m, length, kv_head, head, std::min<int64_t>(kMaxQueries, end - head)});
    }
    m += length;
  }
  const auto count = static_cast<int64_t>(jobs.size()), parts = std::min<int64_t>(pool.size(), count);
  pool.parallel_for(parts, 1, [&](int64_t first_part, int64_t last_part) {
    for (int64_t part = first_part; part < last_part; ++part)
      for (int64_t i = count * part / parts; i < count * (part + 1) / parts; ++i) {
        const AttentionScratch::Job& job = jobs[static_cast<size_t>(i)];
        HWY_DYNAMIC_DISPATCH(attend)
        ({.layer = &layer,
          .first_row = &rows[static_cast<size_t>(job.row)],
          .kv_head = job.kv_head,
          .rows = static_cast<int>(job.rows),
          .heads = static_cast<int>(job.heads),
          .q = q.data() + job.row * q.stride(0) + job.head * layer.head_dim,
          .q_stride = q.stride(0),
          .out = out.data() + job.row * out.stride(0) + job.head * layer.head_dim,
          .out_stride = out.stride(0),
          .scale = shape.scale > 0 ? shape.scale : 1.0f / std::sqrt(static_cast<float>(layer.head_dim)),
          .cap = shape.cap,
          .window = shape.window,
          .sinks = shape.sinks ? shape.sinks + job.head : nullptr,
          .scratch = scratch.of_thread(part).data()});
      }
  });
}

}  // namespace outrider
#endif
