// Norm, rotary embedding, gated activations, residual. Sums keep 16 lanes by index % 16, then one tree; every
// element-wise function is the same vector code for body and tail, so the place where a shard ends cannot
// matter.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise.cpp"
#include <hwy/foreach_target.h>  // first: it re-includes this file for every instruction set

#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/shard.h"
#include "kernels/cpu/cpu_ops.h"

HWY_BEFORE_NAMESPACE();
namespace outrider {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using F = hn::CappedTag<float, 16>;
using V = hn::Vec<F>;
constexpr int64_t kLanes = hn::MaxLanes(F());

// Calls op(pointer to kLanes inputs a, b) -> vector for every element; the tail goes through a padded copy.
template <class Op>
HWY_INLINE void for_each(float* a, const float* b, int64_t n, Op op) {
  const F f;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(op(hn::LoadU(f, a + i), hn::LoadU(f, b + i)), f, a + i);
  if (i == n) return;
  HWY_ALIGN float tail_a[kLanes] = {}, tail_b[kLanes] = {};
  const auto bytes = static_cast<size_t>(n - i) * sizeof(float);
  std::memcpy(tail_a, a + i, bytes);
  std::memcpy(tail_b, b + i, bytes);
  hn::Store(op(hn::Load(f, tail_a), hn::Load(f, tail_b)), f, tail_a);
  std::memcpy(a + i, tail_a, bytes);
}

void silu_mul_row(float* gate, const float* up, int64_t n) {
  for_each(gate, up, n, [](V g, V u) HWY_ATTR {
    const V one = hn::Set(F(), 1.0f);
    return hn::Mul(hn::Div(g, hn::Add(one, hn::Exp(F(), hn::Neg(g)))), u);
  });
}

void gelu_tanh_mul_row(float* gate, const float* up, int64_t n) {
  for_each(gate, up, n, [](V g, V u) HWY_ATTR {
    const F f;
    const V cubic = hn::Mul(hn::Mul(hn::Mul(g, g), g), hn::Set(f, 0.044715f));
    const V inner = hn::Mul(hn::Set(f, 0.7978845608028654f), hn::Add(g, cubic));  // sqrt(2 / pi)
    const V gelu = hn::Mul(hn::Mul(hn::Set(f, 0.5f), g), hn::Add(hn::Set(f, 1.0f), hn::Tanh(f, inner)));
    return hn::Mul(gelu, u);
  });
}

// NaN stays NaN.
void clamped_swish_mul_row(float* gate, const float* up, float factor, float limit, int64_t n) {
  for_each(gate, up, n, [factor, limit](V g, V u) HWY_ATTR {
    const V one = hn::Set(F(), 1.0f), high = hn::Set(F(), limit), low = hn::Set(F(), -limit);
    g = hn::IfThenElse(hn::Gt(g, high), high, g);
    u = hn::IfThenElse(hn::Gt(u, high), high, hn::IfThenElse(hn::Lt(u, low), low, u));
    // exp knows arguments up to about 100, behind which the sigmoid is 0 anyway.
    const V power = hn::Min(hn::Neg(hn::Mul(g, hn::Set(F(), factor))), hn::Set(F(), 88.0f));
    return hn::Mul(hn::Div(g, hn::Add(one, hn::Exp(F(), power))), hn::Add(u, one));
  });
}

void scale_row(float* x, float factor, int64_t n) {
  for_each(x, x, n, [factor](V a, V) HWY_ATTR { return hn::Mul(a, hn::Set(F(), factor)); });
}

void cap_row(float* x, float cap, int64_t n) {
  for_each(x, x, n, [cap](V a, V) HWY_ATTR {
    const V by = hn::Set(F(), cap);
    return hn::Mul(by, hn::Tanh(F(), hn::Div(a, by)));
  });
}

void add_scaled_row(float* x, const float* y, float factor, int64_t n) {
  for_each(x, y, n, [factor](V a, V b) HWY_ATTR { return hn::Add(a, hn::Mul(b, hn::Set(F(), factor))); });
}

void add_row(float* x, const float* y, int64_t n) {
  for_each(x, y, n, [](V a, V b) HWY_ATTR { return hn::Add(a, b); });
}

float squares_of_row(const float* x, int64_t n) {
  constexpr int64_t kVectors = 16 / kLanes;
  HWY_ALIGN float lanes[16];
  V sum[kVectors];
  for (V& v : sum) v = hn::Zero(F());
  int64_t i = 0;
  const F f;
  for (; i + 16 <= n; i += 16)
    for (int64_t j = 0; j < kVectors; ++j) {
      const V v = hn::LoadU(f, x + i + j * kLanes);
      sum[j] = hn::Add(sum[j], hn::Mul(v, v));
    }
  for (int64_t j = 0; j < kVectors; ++j) hn::Store(sum[j], f, lanes + j * kLanes);
  for (int64_t j = 0; i + j < n; ++j) lanes[j] = lanes[j] + x[i + j] * x[i + j];
  for (int width = 8; width >= 1; width /= 2)
    for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  return lanes[0];
}

void rms_norm_row(const float* x, const float* weight, int64_t n, float epsilon, float* out) {
  const float scale = 1.0f / std::sqrt(squares_of_row(x, n) / static_cast<float>(n) + epsilon);
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * scale * weight[i];
}

}  // namespace HWY_NAMESPACE
}  // namespace outrider
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace outrider {

HWY_EXPORT(silu_mul_row);
HWY_EXPORT(gelu_tanh_mul_row);
HWY_EXPORT(clamped_swish_mul_row);
HWY_EXPORT(scale_row);
HWY_EXPORT(cap_row);
HWY_EXPORT(add_scaled_row);
HWY_EXPORT(add_row);
HWY_EXPORT(squares_of_row);
HWY_EXPORT(rms_norm_row);

void rms_norm(TensorView<const float, 2> x, std::span<const float> weight, float epsilon,
              TensorView<float, 2> out) {
  const auto n = static_cast<int64_t>(weight.size());
  CHECK(x.extent(1) >= n && out.extent(1) >= n, "row of {} for {} weights", x.extent(1), n);
  for (int64_t m = 0; m < x.extent(0); ++m) HWY_DYNAMIC_DISPATCH(rms_norm_row)
  (x.data() + m * x.stride(0), weight.data(), n, epsilon, out.data() + m * out.stride(0));
}

float sum_of_squares(std::span<const float> part, std::span<const int64_t> leaf_ends) {
  CHECK(leaf_ends.size() <= kLeaves && !leaf_ends.empty(), "{} leaves", leaf_ends.size());
  float sums[kLeaves] = {};
  int64_t begin = 0;
  for (size_t i = 0; i < leaf_ends.size(); begin = leaf_ends[i++])
    sums[i] = HWY_DYNAMIC_DISPATCH(squares_of_row)(part.data() + begin, leaf_ends[i] - begin);
  for (size_t step = 1; step < leaf_ends.size(); step *= 2)
    for (size_t i = 0; i < leaf_ends.size(); i += 2 * step) sums[i] += sums[i + step];
  return sums[0];
}

void norm_part(std::span<float> part, std::span<const float> weight, float mean_square, float epsilon) {
  const float scale = 1.0f / std::sqrt(mean_square + epsilon);
  for (size_t i = 0; i < part.size(); ++i) part[i] = part[i] * scale * weight[i];
}

namespace {

// Calls row(m, first, count) for pieces of every row, a few microseconds of work together.
template <class Row>
void for_pieces(ThreadPool& pool, int64_t rows, int64_t n, const Row& row) {
  constexpr int64_t kPiece = 1024;  // columns; four pieces are a few microseconds of work
  const int64_t pieces = (n + kPiece - 1) / kPiece;
  pool.parallel_for(rows * pieces, 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t column = i % pieces * kPiece;
      row(i / pieces, column, std::min(kPiece, n - column));
    }
  });
}

}  // namespace

void silu_mul(ThreadPool& pool, TensorView<float, 2> gate, TensorView<const float, 2> up, int64_t n) {
  for_pieces(pool, gate.extent(0), n, [&](int64_t m, int64_t column, int64_t count) {
    HWY_DYNAMIC_DISPATCH(silu_mul_row)
    (gate.data() + m * gate.stride(0) + column, up.data() + m * up.stride(0) + column, count);
  });
}

void gelu_tanh_mul(ThreadPool& pool, TensorView<float, 2> gate, TensorView<const float, 2> up, int64_t n) {
  for_pieces(pool, gate.extent(0), n, [&](int64_t m, int64_t column, int64_t count) {
    HWY_DYNAMIC_DISPATCH(gelu_tanh_mul_row)
    (gate.data() + m * gate.stride(0) + column, up.data() + m * up.stride(0) + column, count);
  });
}

void clamped_swish_mul(ThreadPool& pool, TensorView<float, 2> gate, TensorView<const float, 2> up, int64_t n,
                       float factor, float limit) {
  for_pieces(pool, gate.extent(0), n, [&](int64_t m, int64_t column, int64_t count) {
    HWY_DYNAMIC_DISPATCH(clamped_swish_mul_row)
    (gate.data() + m * gate.stride(0) + column, up.data() + m * up.stride(0) + column, factor, limit, count);
  });
}

void scale_rows(TensorView<float, 2> x, float factor) {
  for (int64_t m = 0; m < x.extent(0); ++m)
    HWY_DYNAMIC_DISPATCH(scale_row)(x.data() + m * x.stride(0), factor, x.extent(1));
}

void cap_rows(ThreadPool& pool, TensorView<float, 2> x, float cap) {
  for_pieces(pool, x.extent(0), x.extent(1), [&](int64_t m, int64_t column, int64_t count) {
    HWY_DYNAMIC_DISPATCH(cap_row)(x.data() + m * x.stride(0) + column, cap, count);
  });
}

void add_scaled(std::span<float> x, std::span<const float> y, float factor) {
  HWY_DYNAMIC_DISPATCH(add_scaled_row)(x.data(), y.data(), factor, static_cast<int64_t>(x.size()));
}

void add_rows(TensorView<float, 2> x, TensorView<const float, 2> y) {
  for (int64_t m = 0; m < x.extent(0); ++m)
    HWY_DYNAMIC_DISPATCH(add_row)(x.data() + m * x.stride(0), y.data() + m * y.stride(0), x.extent(1));
}

void add_bias(TensorView<float, 2> x, std::span<const float> bias) {
  if (bias.empty()) return;
  for (int64_t m = 0; m < x.extent(0); ++m)
    HWY_DYNAMIC_DISPATCH(add_row)(x.data() + m * x.stride(0), bias.data(), static_cast<int64_t>(bias.size()));
}

RopeTable::RopeTable(std::span<const float> frequencies, int64_t positions, float amplitude, bool interleaved)
    : pairs_(static_cast<int64_t>(frequencies.size())),
      interleaved_(interleaved),
      cos_(positions * pairs_),
      sin_(positions * pairs_) {
  for (int64_t p = 0; p < positions; ++p)
    for (int64_t i = 0; i < pairs_; ++i) {
      // The reference implementation rounds the angle to fp32 before the cosine; at long contexts that is
      // visible.
      const float angle = static_cast<float>(p) * frequencies[static_cast<size_t>(i)];
      cos_[p * pairs_ + i] = std::cos(angle) * amplitude;
      sin_[p * pairs_ + i] = std::sin(angle) * amplitude;
    }
}

void RopeTable::rotate(std::span<float> head, int64_t position) const {
  const float* c = cos_.data() + position * pairs_;
  const float* s = sin_.data() + position * pairs_;
  float* low = head.data();
  if (interleaved_) {
    for (int64_t i = 0; i < pairs_; ++i) {
      const float a = low[2 * i], b = low[2 * i + 1];
      low[2 * i] = a * c[i] - b * s[i];
      low[2 * i + 1] = b * c[i] + a * s[i];
    }
    return;
  }
  float* high = head.data() + pairs_;
  for (int64_t i = 0; i < pairs_; ++i) {
    const float a = low[i], b = high[i];
    low[i] = a * c[i] - b * s[i];
    high[i] = b * c[i] + a * s[i];
  }
}

}  // namespace outrider
#endif
