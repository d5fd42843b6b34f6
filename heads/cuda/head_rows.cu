// Elementwise work on rows of heads, and norms of rows that stand apart.
#include "heads/cuda/head_rows.h"

#include <type_traits>

#include "base/cuda_device.h"
#include "kernels/cuda/norm_row.h"

namespace outrider::cuda {
namespace {

constexpr int kThreads = kNormThreads;
constexpr uint16_t kExponent = 0x7f80;  // all ones: not finite

template <class T>
__global__ void __launch_bounds__(kThreads) norm_apart(const NormedRows a) {
  const NormWeights weights(a.weight, a.x.columns);
  await_inputs();
  const int64_t m = blockIdx.x;
  const float* x = a.x.data + m * a.x.stride;
  T* out = static_cast<T*>(a.out) + m * a.out_stride;
  const auto value_at = [&](int64_t i) { return x[i]; };
  if (a.weight)
    return norm_row(a.x.columns, a.epsilon, weights, shared_memory<float>(), out, value_at,
                    [](int64_t, float) {});
  for (int64_t i = threadIdx.x; i < a.x.columns; i += kThreads) out[i] = rounded<T>(x[i]);
}

// Grid: elements, rows. What joins a number: added + bias, or silu of it.
template <bool kIsGated>
__global__ void __launch_bounds__(kThreads) add_apart(const RowsAt x, const RowsAt added, const float* bias) {
  await_inputs();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, m = blockIdx.y;
  if (i >= x.columns) return;
  float value = added.data ? added.data[m * added.stride + i] : 0.0f;
  if (bias) value = added.data ? value + bias[i] : bias[i];
  if constexpr (kIsGated) value = value / (1.0f + expf(-value));
  float& to = x.data[m * x.stride + i];
  to = to + value;
}

template <class T>
__global__ void __launch_bounds__(kThreads) gate_apart(const RowsAt gate, const GatedRows x) {
  await_inputs();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, m = blockIdx.y;
  if (i >= gate.columns) return;
  T& to = static_cast<T*>(x.data)[m * x.stride + i];
  const float divisor = 1.0f + expf(-gate.data[m * gate.stride + i]);
  if constexpr (std::is_same_v<T, float>)
    to = to / divisor;
  else
    to = to_bf16(to_float(to) / divisor);
}

__global__ void __launch_bounds__(kThreads) round_apart(const RowsAt x) {
  await_inputs();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= x.columns) return;
  float& at = x.data[static_cast<int64_t>(blockIdx.y) * x.stride + i];
  at = to_float(to_bf16(at));
}

__global__ void __launch_bounds__(kThreads) widen_apart(const bf16* from, const RowsAt to) {
  await_inputs();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, m = blockIdx.y;
  if (i < to.columns) to.data[m * to.stride + i] = to_float(from[m * to.columns + i]);
}

// A block for each row.
__global__ void __launch_bounds__(kThreads) narrow_apart(const RowsAt from, bf16* to, uint32_t* finite) {
  uint32_t* const of_threads = shared_memory<uint32_t>();
  await_inputs();
  const int64_t m = blockIdx.x;
  uint32_t is_finite = 1;
  for (int64_t i = threadIdx.x; i < from.columns; i += kThreads) {
    const bf16 number = to_bf16(from.data[m * from.stride + i]);
    to[m * from.columns + i] = number;
    is_finite &= (number.bits & kExponent) != kExponent;
  }
  of_threads[threadIdx.x] = is_finite;
  sync_block();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) of_threads[threadIdx.x] &= of_threads[threadIdx.x + half];
    sync_block();
  }
  if (threadIdx.x == 0) finite[m] = of_threads[0];
}

__global__ void __launch_bounds__(kThreads)
    gather_apart(const HiddenStateRows hidden_states, const HiddenStateSlots slots, const RowsAt to) {
  await_inputs();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, m = blockIdx.y;
  if (i >= to.columns) return;
  const int64_t at = slots.tokens[m] * hidden_states.size + i;
  to.data[m * to.stride + i] = hidden_states.type == KvType::kBFloat16
                                   ? to_float(static_cast<const bf16*>(hidden_states.data)[at])
                                   : static_cast<const float*>(hidden_states.data)[at];
}

__global__ void __launch_bounds__(kThreads)
    spread_apart(const RowsAt x, const RowNumbers numbers, const int32_t* own_of, const RowsAt to) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, m = blockIdx.y;
  const int64_t own = i >= to.columns ? -1 : own_of ? own_of[i] : i;
  await_inputs();
  if (i >= to.columns) return;
  to.data[m * to.stride + i] = own < 0 ? -INFINITY : x.data[int64_t{numbers.rows[m]} * x.stride + own];
}

__global__ void __launch_bounds__(kThreads)
    read_apart(const MatrixView table, const int32_t* tokens, const RowsAt to) {
  await_inputs();
  const auto i = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  const int64_t m = blockIdx.y;
  if (i >= to.columns) return;
  const int64_t at = element_offset(table, tokens[m], i);
  to.data[m * to.stride + i] = table.type == WeightType::kBFloat16
                                   ? to_float(static_cast<const bf16*>(table.data)[at])
                                   : static_cast<const float*>(table.data)[at];
}

__global__ void __launch_bounds__(kThreads) advance(int32_t* positions, int32_t* sees, int32_t rows) {
  await_inputs();
  const auto row = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (row >= rows) return;
  ++positions[row];
  ++sees[row];
}

LaunchShape elements_of(const RowsAt& x) {
  return {.grid_x = static_cast<unsigned>((x.columns + kThreads - 1) / kThreads),
          .grid_y = static_cast<unsigned>(x.rows),
          .threads = kThreads,
          .early = true};
}

}  // namespace

void norm_rows(StreamView stream, const NormedRows& arguments) {
  if (arguments.x.rows * arguments.x.columns == 0) return;
  const LaunchShape shape{.grid_x = static_cast<unsigned>(arguments.x.rows),
                          .threads = kThreads,
                          .shared_bytes = kNormWarps * sizeof(float),
                          .early = true};
  if (arguments.type == WeightType::kBFloat16)
    launch(stream, shape, &norm_apart<bf16>, arguments);
  else
    launch(stream, shape, &norm_apart<float>, arguments);
}

void add_bias(StreamView stream, const RowsAt& x, const float* bias) {
  if (x.rows * x.columns == 0 || !bias) return;
  launch(stream, elements_of(x), &add_apart<false>, x, RowsAt{}, bias);
}

void add_rows(StreamView stream, const RowsAt& x, const RowsAt& added, const float* bias) {
  if (x.rows * x.columns == 0) return;
  launch(stream, elements_of(x), &add_apart<false>, x, added, bias);
}

void add_silu(StreamView stream, const RowsAt& x, const RowsAt& added, const float* bias) {
  if (x.rows * x.columns == 0) return;
  launch(stream, elements_of(x), &add_apart<true>, x, added, bias);
}

void gate_rows(StreamView stream, const RowsAt& gate, const GatedRows& x) {
  if (gate.rows * gate.columns == 0) return;
  if (x.type == WeightType::kBFloat16)
    launch(stream, elements_of(gate), &gate_apart<bf16>, gate, x);
  else
    launch(stream, elements_of(gate), &gate_apart<float>, gate, x);
}

void round_rows(StreamView stream, const RowsAt& x) {
  if (x.rows * x.columns == 0) return;
  launch(stream, elements_of(x), &round_apart, x);
}

void widen_rows(StreamView stream, const bf16* from, const RowsAt& to) {
  if (to.rows * to.columns == 0) return;
  launch(stream, elements_of(to), &widen_apart, from, to);
}

void narrow_rows(StreamView stream, const RowsAt& from, bf16* to, uint32_t* finite) {
  if (from.rows == 0) return;
  launch(stream,
         {.grid_x = static_cast<unsigned>(from.rows),
          .threads = kThreads,
          .shared_bytes = kThreads * sizeof(uint32_t),
          .early = true},
         &narrow_apart, from, to, finite);
}

void gather_hidden_states(StreamView stream, const HiddenStateRows& hidden_states,
                          const HiddenStateSlots& slots, const RowsAt& to) {
  CHECK(slots.count == to.rows && to.columns == hidden_states.size, "{} slots, {} rows of {} numbers",
        slots.count, to.rows, to.columns);
  if (to.rows * to.columns == 0) return;
  launch(stream, elements_of(to), &gather_apart, hidden_states, slots, to);
}

void spread_rows(StreamView stream, const RowsAt& x, const RowNumbers& numbers, const int32_t* own_of,
                 const RowsAt& to) {
  CHECK(numbers.count == to.rows && (own_of || x.columns == to.columns), "{} rows, {} of {} numbers",
        numbers.count, to.rows, x.columns);
  if (to.rows * to.columns == 0) return;
  launch(stream, elements_of(to), &spread_apart, x, numbers, own_of, to);
}

void read_table(StreamView stream, const MatrixView& table, const int32_t* tokens, const RowsAt& to) {
  CHECK(to.columns == table.slices.k(), "{} numbers of rows of {}", to.columns, table.slices.k());
  if (to.rows * to.columns == 0) return;
  LaunchShape shape = elements_of(to);
  shape.early = false;
  launch(stream, shape, &read_apart, table, tokens, to);
}

// The first kernel of a recorded step, which has none in front of it to overlap with.
void advance_rows(StreamView stream, int32_t* positions, int32_t* sees, int64_t rows) {
  if (rows == 0) return;
  const auto blocks = static_cast<unsigned>((rows + kThreads - 1) / kThreads);
  launch(stream, {.grid_x = blocks, .threads = kThreads}, &advance, positions, sees,
         static_cast<int32_t>(rows));
}

}  // namespace outrider::cuda
