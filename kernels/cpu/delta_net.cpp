// Gated delta nets. A thread takes key heads of sequences, with the value heads that they serve. It brings a
// few tokens at a time into the form that the states take (prepare), and then goes over blocks of columns of
// a state: a block stays in the nearest cache while all tokens update it.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/delta_net.cpp"
#include <hwy/foreach_target.h>  // first: it re-includes this file for every instruction set

#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "kernels/cpu/delta_net.h"

#ifndef OUTRIDER_DELTA_NET_ONCE
#define OUTRIDER_DELTA_NET_ONCE
namespace outrider {

constexpr int64_t kDeltaSteps = 16;  // tokens that are prepared together

// One token updates the states of a key head's value heads.
struct DeltaStep {
  const AttentionRow* path = nullptr;  // finds the token's slot and those in front of it
  int64_t position = 0;
  const float* from = nullptr;  // states before the token
  float* to = nullptr;          // and behind it; null: not kept
  int64_t out_row = -1;         // row of the pass; -1: the output is not needed
};

// A thread's floats. [kDeltaSteps] of each but the states.
struct DeltaNetScratch::Area {
  // first: of `size` floats; null where only the size is of interest.
  Area(const DeltaNetShape& s, float* first)
      : key_stride(round_up(s.key_dim, kRowPadding)),
        heads(s.most_values()),
        value_stride(heads * s.padded_value_dim()),
        states(heads * s.key_dim * s.padded_value_dim()) {
    const auto take = [&](int64_t count) {
      float* const at = first ? first + size : nullptr;
      size += count;
      return at;
    };
    q = take(kDeltaSteps * key_stride);
    k = take(kDeltaSteps * key_stride);
    v = take(kDeltaSteps * value_stride);
    out = take(kDeltaSteps * value_stride);
    decay = take(kDeltaSteps * heads);
    beta = take(kDeltaSteps * heads);
    chain = take(states);
    branch = take(states);
  }
  int64_t key_stride, heads, value_stride, states;  // heads: at most, of values
  float *q, *k, *v, *out, *decay, *beta;
  float *chain, *branch;  // states of draft tokens
  int64_t size = 0;       // of all
};

// A key head of this rank with all that its tokens read.
struct DeltaHead {
  const DeltaNetShape* shape;
  const DeltaNetVectors* vectors;
  const KvLayerView* layer;
  int64_t head;
  std::span<const int64_t> values;
  const float* gate;
  int64_t gate_stride;
  float* out;
  int64_t out_stride;
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

HWY_INLINE V sigmoid(V x) {
  const V one = hn::Set(F(), 1.0f);
  // exp knows arguments up to about 100, behind which the sigmoid is 0 anyway.
  return hn::Div(one, hn::Add(one, hn::Exp(F(), hn::Min(hn::Neg(x), hn::Set(F(), 88.0f)))));
}

// In place, over a multiple of 16 floats.
void silu(float* x, int64_t n) {
  const F f;
  for (int64_t i = 0; i < n; i += kLanes) {
    const V value = hn::LoadU(f, x + i);
    hn::StoreU(hn::Mul(value, sigmoid(value)), f, x + i);
  }
}

// n is a multiple of 16. Index i is added in lane i % 16, and one tree adds the lanes.
float sum_of_squares(const float* x, int64_t n) {
  HWY_ALIGN float lanes[16] = {};
  for (int64_t i = 0; i < n; i += 16)
    for (int j = 0; j < 16; ++j) lanes[j] += x[i + j] * x[i + j];
  for (int width = 8; width >= 1; width /= 2)
    for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  return lanes[0];
}

void scale(float* x, int64_t n, float factor) {
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

HWY_INLINE float as_float(float value) { return value; }
HWY_INLINE float as_float(bf16 value) { return to_float(value); }

template <class T>
HWY_INLINE const T* kept_row(const KvLayerView& layer, const AttentionRow& path, int64_t position) {
  const int64_t slot = path.slot(position), block = path.block_table[slot / kBlockTokens];
  return reinterpret_cast<const T*>(layer.values) +
         (block * kBlockTokens + slot % kBlockTokens) * layer.value_stride();
}

// Query, key, values, decay and beta of step j.
template <class T>
void prepare(const DeltaHead& h, const DeltaStep& step, const DeltaNetScratch::Area& area, int64_t j) {
  const DeltaNetShape& s = *h.shape;
  float *const q = area.q + j * area.key_stride, *const k = area.k + j * area.key_stride,
               *const v = area.v + j * area.value_stride;
  const int64_t keys = s.key_heads() * s.key_dim, channels = s.channels(), padded = s.padded_value_dim();
  const auto heads = static_cast<int64_t>(h.values.size());
  std::fill_n(q, area.key_stride, 0.0f);
  std::fill_n(k, area.key_stride, 0.0f);
  std::fill_n(v, area.value_stride, 0.0f);
  for (int64_t tap = 0; tap < s.taps; ++tap) {
    const int64_t position = step.position - (s.taps - 1) + tap;
    if (position < 0) continue;
    const T* const kept = kept_row<T>(*h.layer, *step.path, position);
    const float* const weights = h.vectors->taps.data() + tap * channels;
    const auto add = [&](float* to, int64_t first, int64_t count) {
      for (int64_t c = 0; c < count; ++c) to[c] += weights[first + c] * as_float(kept[first + c]);
    };
    add(q, h.head * s.key_dim, s.key_dim);
    add(k, keys + h.head * s.key_dim, s.key_dim);
    for (int64_t i = 0; i < heads; ++i)
      add(v + i * padded, 2 * keys + h.values[static_cast<size_t>(i)] * s.value_dim, s.value_dim);
  }
  silu(q, area.key_stride);
  silu(k, area.key_stride);
  silu(v, area.value_stride);
  constexpr float kEpsilon = 1e-6f;
  scale(q, s.key_dim, 1.0f / std::sqrt(sum_of_squares(q, area.key_stride) + kEpsilon));
  scale(q, s.key_dim, 1.0f / std::sqrt(static_cast<float>(s.key_dim)));
  scale(k, s.key_dim, 1.0f / std::sqrt(sum_of_squares(k, area.key_stride) + kEpsilon));
  const T* const kept = kept_row<T>(*h.layer, *step.path, step.position) + channels;
  for (int64_t i = 0; i < heads; ++i) {
    const int64_t value = h.values[static_cast<size_t>(i)];
    const auto head = static_cast<size_t>(value);
    const float b = as_float(kept[value]),
                a = as_float(kept[s.value_heads() + value]) + h.vectors->dt_bias[head];
    area.beta[j * area.heads + i] = 1.0f / (1.0f + std::exp(-b));
    const float softplus = a > 20 ? a : std::log1p(std::exp(a));
    area.decay[j * area.heads + i] = std::exp(h.vectors->rate[head] * softplus);
  }
}

// Step j in kVectors columns of vectors of one value head.
template <int kVectors, bool kStores, bool kOutputs>
HWY_INLINE void update(const DeltaNetShape& s, const DeltaNetScratch::Area& area, const float* from,
                       float* to, int64_t j, int64_t value, int64_t column) {
  const F f;
  const int64_t stride = s.padded_value_dim();
  const float *const k = area.k + j * area.key_stride, *const q = area.q + j * area.key_stride;
  const V decay = hn::Set(f, area.decay[j * area.heads + value]),
          beta = hn::Set(f, area.beta[j * area.heads + value]);
  V sum[kVectors];
  for (V& each : sum) each = hn::Zero(f);
  for (int64_t i = 0; i < s.key_dim; ++i) {
    const V key = hn::Set(f, k[i]);
    for (int64_t n = 0; n < kVectors; ++n)
      sum[n] = hn::MulAdd(hn::Mul(hn::LoadU(f, from + i * stride + n * kLanes), decay), key, sum[n]);
  }
  const int64_t at = j * area.value_stride + value * stride + column;
  for (int64_t n = 0; n < kVectors; ++n)
    sum[n] = hn::Mul(hn::Sub(hn::LoadU(f, area.v + at + n * kLanes), sum[n]), beta);
  V out[kVectors];
  for (V& each : out) each = hn::Zero(f);
  for (int64_t i = 0; i < s.key_dim; ++i) {
    const V key = hn::Set(f, k[i]), query = hn::Set(f, q[i]);
    for (int64_t n = 0; n < kVectors; ++n) {
      const V state = hn::MulAdd(key, sum[n], hn::Mul(hn::LoadU(f, from + i * stride + n * kLanes), decay));
      if constexpr (kStores) hn::StoreU(state, f, to + i * stride + n * kLanes);
      if constexpr (kOutputs) out[n] = hn::MulAdd(state, query, out[n]);
    }
  }
  if constexpr (kOutputs)
    for (int64_t n = 0; n < kVectors; ++n) hn::StoreU(out[n], f, area.out + at + n * kLanes);
}

template <int kVectors>
HWY_INLINE void update_columns(const DeltaNetShape& s, const DeltaNetScratch::Area& area,
                               const DeltaStep* steps, int64_t count, int64_t value, int64_t column) {
  const int64_t first = value * s.key_dim * s.padded_value_dim() + column;
  for (int64_t j = 0; j < count; ++j) {
    const DeltaStep& step = steps[j];
    const float* const from = step.from + first;
    float* const to = step.to ? step.to + first : nullptr;
    if (to && step.out_row >= 0)
      update<kVectors, true, true>(s, area, from, to, j, value, column);
    else if (to)
      update<kVectors, true, false>(s, area, from, to, j, value, column);
    else if (step.out_row >= 0)
      update<kVectors, false, true>(s, area, from, to, j, value, column);
  }
}

// Norm and gate of step j's outputs.
void finish(const DeltaHead& h, const DeltaNetScratch::Area& area, const DeltaStep& step, int64_t j) {
  const DeltaNetShape& s = *h.shape;
  const int64_t padded = s.padded_value_dim();
  const float* const norm = h.vectors->norm.data();
  for (size_t i = 0; i < h.values.size(); ++i) {
    const int64_t at = h.values[i] * s.value_dim,
                  own = j * area.value_stride + static_cast<int64_t>(i) * padded;
    const float *const o = area.out + own, *const gate = h.gate + step.out_row * h.gate_stride + at;
    float* const to = h.out + step.out_row * h.out_stride + at;
    const float by =
        1.0f / std::sqrt(sum_of_squares(o, padded) / static_cast<float>(s.value_dim) + s.epsilon);
    float* const gates = area.v + own;  // its values are used up
    std::copy_n(gate, s.value_dim, gates);
    silu(gates, padded);
    for (int64_t c = 0; c < s.value_dim; ++c) to[c] = norm[c] * (o[c] * by) * gates[c];
  }
}

// At most kDeltaSteps steps, each of which may begin with the state that the one before leaves.
void run_steps(const DeltaHead& h, const DeltaNetScratch::Area& area, const DeltaStep* steps, int64_t count) {
  const DeltaNetShape& s = *h.shape;
  for (int64_t j = 0; j < count; ++j)
    h.layer->type == KvType::kBFloat16 ? prepare<bf16>(h, steps[j], area, j)
                                       : prepare<float>(h, steps[j], area, j);
  constexpr int kTogether = 4;
  for (int64_t value = 0; value < static_cast<int64_t>(h.values.size()); ++value) {
    int64_t column = 0;
    for (; column + kTogether * kLanes <= s.padded_value_dim(); column += kTogether * kLanes)
      update_columns<kTogether>(s, area, steps, count, value, column);
    for (; column < s.padded_value_dim(); column += kLanes)
      update_columns<1>(s, area, steps, count, value, column);
  }
  for (int64_t j = 0; j < count; ++j)
    if (steps[j].out_row >= 0) finish(h, area, steps[j], j);
}

void sigmoid_mul_row(float* x, const float* gate, int64_t n) {
  const F f;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    hn::StoreU(hn::Mul(hn::LoadU(f, x + i), sigmoid(hn::LoadU(f, gate + i))), f, x + i);
  if (i == n) return;
  HWY_ALIGN float tail[2][kLanes] = {};
  std::copy_n(x + i, n - i, tail[0]);
  std::copy_n(gate + i, n - i, tail[1]);
  hn::Store(hn::Mul(hn::Load(f, tail[0]), sigmoid(hn::Load(f, tail[1]))), f, tail[0]);
  std::copy_n(tail[0], n - i, x + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace outrider
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace outrider {

HWY_EXPORT(run_steps);
HWY_EXPORT(sigmoid_mul_row);

namespace {

// Steps of one key head of one sequence, collected until they are enough to run together.
class HeadRun {
 public:
  HeadRun(const DeltaHead& head, const DeltaNetScratch::Area& area) : head_(head), area_(area) {}
  ~HeadRun() { flush(); }
  void add(const DeltaStep& step) {
    steps_[count_++] = step;
    if (count_ == kDeltaSteps) flush();
  }

 private:
  void flush() {
    if (count_ > 0) HWY_DYNAMIC_DISPATCH(run_steps)(head_, area_, steps_, count_);
    count_ = 0;
  }
  const DeltaHead& head_;
  const DeltaNetScratch::Area& area_;
  DeltaStep steps_[kDeltaSteps];
  int64_t count_ = 0;
};

// The state takes in the tokens in front of `hold`. Draft tokens go on from there beside it, and each branch
// of a tree from what the chain in front of the tree left.
void run_head(const DeltaHead& head, const DeltaNetScratch::Area& area, const DeltaNetSequence& sequence,
              std::span<const AttentionRow> rows) {
  const DeltaNetShape& shape = *head.shape;
  const int64_t each = shape.key_dim * shape.padded_value_dim();
  float* const state = sequence.state + shape.first_of(head.head) * each;
  if (sequence.held == 0) std::fill_n(state, static_cast<int64_t>(head.values.size()) * each, 0.0f);
  const auto own = rows.subspan(static_cast<size_t>(sequence.first_row), static_cast<size_t>(sequence.rows));
  const auto chain_rows =
      std::find_if(own.begin(), own.end(), [](const AttentionRow& row) { return row.has_tail(); }) -
      own.begin();
  const bool has_tree = static_cast<size_t>(chain_rows) < own.size();
  const int64_t chain_end = own.empty()      ? sequence.hold
                            : chain_rows > 0 ? own[static_cast<size_t>(chain_rows) - 1].position + 1
                                             : own.front().tail_begin;
  CHECK(sequence.held <= sequence.hold && sequence.hold <= chain_end, "states of {} to {} of {} tokens",
        sequence.held, sequence.hold, chain_end);
  const AttentionRow path{.block_table = sequence.block_table};
  HeadRun run(head, area);
  for (int64_t p = sequence.held; p < chain_end; ++p) {
    const int64_t row = p - (chain_end - chain_rows);
    const bool is_last = p + 1 == chain_end && !has_tree;
    run.add({.path = &path,
             .position = p,
             .from = p <= sequence.hold ? state : area.chain,
             .to = p < sequence.hold ? state
                   : is_last         ? nullptr
                                     : area.chain,
             .out_row = row >= 0 ? sequence.first_row + row : -1});
  }
  const float* const base = chain_end == sequence.hold ? state : area.chain;
  for (auto i = static_cast<size_t>(chain_rows); i < own.size(); ++i) {
    const AttentionRow& node = own[i];
    const bool goes_on = i > static_cast<size_t>(chain_rows) && node.position > node.tail_begin &&
                         node.position == own[i - 1].position + 1 &&
                         node.slot(node.position - 1) == own[i - 1].slot(own[i - 1].position);
    for (int64_t p = goes_on ? node.position : node.tail_begin; p <= node.position; ++p)
      run.add({.path = &node,
               .position = p,
               .from = p == node.tail_begin ? base : area.branch,
               .to = area.branch,
               .out_row = p == node.position ? sequence.first_row + static_cast<int64_t>(i) : -1});
  }
}

}  // namespace

int64_t DeltaNetShape::most_values() const {
  int64_t most = 0;
  for (int64_t key = 0; key < key_heads(); ++key)
    most = std::max(most, static_cast<int64_t>(values_of(key).size()));
  return most;
}

DeltaNetScratch::DeltaNetScratch(int threads, const DeltaNetShape& shape)
    : threads_(threads),
      stride_(round_up(Area(shape, nullptr).size, kRowPadding)),
      buffer_(threads * stride_) {}

void gated_delta_net(ThreadPool& pool, DeltaNetScratch& scratch, const DeltaNetShape& shape,
                     const DeltaNetVectors& vectors, const KvLayerView& layer,
                     std::span<const DeltaNetSequence> sequences, std::span<const AttentionRow> rows,
                     TensorView<const float, 2> gate, TensorView<float, 2> out) {
  const int64_t jobs = static_cast<int64_t>(sequences.size()) * shape.key_heads();
  const int64_t parts = std::min(jobs, scratch.threads());
  pool.parallel_for(parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const DeltaNetScratch::Area area(shape, scratch.of_thread(part).data());
      for (int64_t job = part; job < jobs; job += parts) {
        const DeltaHead head{.shape = &shape,
                             .vectors = &vectors,
                             .layer = &layer,
                             .head = job % shape.key_heads(),
                             .values = shape.values_of(job % shape.key_heads()),
                             .gate = gate.data(),
                             .gate_stride = gate.stride(0),
                             .out = out.data(),
                             .out_stride = out.stride(0)};
        run_head(head, area, sequences[static_cast<size_t>(job / shape.key_heads())], rows);
      }
    }
  });
}

void sigmoid_mul(ThreadPool& pool, TensorView<float, 2> x, TensorView<const float, 2> gate) {
  pool.parallel_for(x.extent(0), 4, [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) HWY_DYNAMIC_DISPATCH(sigmoid_mul_row)
    (x.data() + m * x.stride(0), gate.data() + m * gate.stride(0), x.extent(1));
  });
}

}  // namespace outrider
#endif
