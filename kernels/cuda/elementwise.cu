// Embedding, residual and norm, rotary embedding with the KV write, gated activations. Sums run over a fixed
// number of threads by index and then over one tree, so they are functions of the row alone.
#include "base/cuda_device.h"
#include "kernels/cuda/gates.h"
#include "kernels/cuda/mma_codes.h"
#include "kernels/cuda/norm_row.h"
#include "kernels/cuda/row_slots.h"

namespace outrider::cuda {
namespace {

constexpr int kThreads = kNormThreads;
constexpr int kWarps = kNormWarps;

// An element of a published checkpoint's codes, decoded (weight_of_code).
__device__ __forceinline__ float published_element(const MatrixView& m, int32_t row, int32_t column) {
  const CodeForm& f = m.form;
  const int64_t at = element_offset(m, row, column);
  const auto* codes = static_cast<const uint8_t*>(m.data);
  const auto code = static_cast<uint8_t>(f.is_half_bytes() ? codes[at / 2] >> (at % 2 * 4) & 15 : codes[at]);
  RowWords words;
  OUTRIDER_UNROLL
  for (int32_t w = 0; w < CodeForm::kMaxWords; ++w)
    if (w < f.words)
      words.words[w] = m.scales[scale_offset(m.slices, row, m.slices.step_of(column), f.words, w)].bits;
  const int32_t in_slice = column - m.slices.begin[m.slices.slice_of(column)];
  const UnitNumbers n = words.numbers(f, in_slice % kGroupStep / f.unit);
  const float number = f.code == CodeType::kE4m3        ? e4m3_to_float(code)
                       : f.code == CodeType::kE2m1      ? e2m1_to_float(code)
                       : f.code == CodeType::kUnsigned8 ? static_cast<float>(code ^ 0x80)
                                                        : static_cast<float>(code);
  if (f.zero_type == ZeroType::kMinimum) return number * n.scale - n.minimum;
  return (number - static_cast<float>(n.zero)) * n.scale;
}

__device__ __forceinline__ float element_of(const MatrixView& m, int32_t row, int32_t column) {
  if (m.type == WeightType::kCodes) return published_element(m, row, column);
  const int64_t at = element_offset(m, row, column);
  if (m.type == WeightType::kFloat32) return static_cast<const float*>(m.data)[at];
  if (m.type == WeightType::kBFloat16) return to_float(static_cast<const bf16*>(m.data)[at]);
  if (m.type == WeightType::kFloat16) return float_of_half(static_cast<const uint16_t*>(m.data)[at]);
  const auto* codes = static_cast<const uint8_t*>(m.data);
  const bool is_int4 = m.type == WeightType::kInt4;
  const auto code = static_cast<uint8_t>(is_int4 ? codes[at / 2] >> (at % 2 * 4) & 15 : codes[at]);
  const int32_t in_slice = column - m.slices.begin[m.slices.slice_of(column)];
  const CodeGroup group{.step = m.slices.step_of(column), .index = in_slice % kGroupStep / m.group_size()};
  return number_of_code(m.type, code) * to_float(m.scales[m.scale_at(row, group)]);
}

// Grid: rows, elements.
__global__ void __launch_bounds__(kThreads)
    embed_rows(const DeviceBatch batch, const MatrixView table, int32_t first_token, int32_t hidden,
               float factor, float* residual) {
  const int64_t m = blockIdx.x;
  const int32_t row = batch.tokens[m] - first_token;
  const bool here = row >= 0 && row < table.n;
  const auto i = static_cast<int32_t>(blockIdx.y * kThreads + threadIdx.x);
  if (i < hidden) residual[m * hidden + i] = here ? element_of(table, row, i) * factor : 0.0f;
}

// Grid: rows, columns.
__global__ void __launch_bounds__(kThreads)
    gather_rows(const bf16* x, int64_t x_stride, const int32_t* columns, int32_t count, bf16* out,
                int64_t out_stride) {
  const int64_t m = blockIdx.x;
  const auto i = static_cast<int32_t>(blockIdx.y * kThreads + threadIdx.x);
  const int32_t column = i < count ? columns[i] : -1;
  await_inputs();
  if (i < count) out[m * out_stride + i] = column >= 0 ? x[m * x_stride + column] : bf16{};
}

// kNormsAdded: what is added is normed first.
template <class T, bool kNormsAdded>
__global__ void __launch_bounds__(kThreads) add_and_norm_rows(const NormArguments a) {
  const NormWeights weights(a.weight, a.hidden);
  await_inputs();
  const int64_t m = blockIdx.x;
  const int64_t from = (a.rows_from ? a.rows_from[m] : m) * a.hidden;
  T* out = static_cast<T*>(a.out) + m * a.hidden;
  auto* sums = shared_memory<float>();
  const auto added_at = [&](int64_t i) { return a.bias ? a.added[from + i] + a.bias[i] : a.added[from + i]; };
  float added_scale = 1;
  if constexpr (kNormsAdded) {
    float held[kNormHeld];
    hold(a.hidden, held, added_at);
    added_scale = norm_scale(a.hidden, a.epsilon, sums + kWarps, held, added_at);
  }
  const auto value_at = [&](int64_t i) {
    float value = a.residual[from + i];
    if constexpr (kNormsAdded)
      value = value + added_at(i) * added_scale * a.added_weight[i] * a.factor;
    else if (a.added)
      value = value + added_at(i) * a.factor;
    return value;
  };
  const auto keep = [&](int64_t i, float value) {
    if (!a.rows_from) a.residual[from + i] = value;
  };
  if (a.weight) return norm_row(a.hidden, a.epsilon, weights, sums, out, value_at, keep);
  for (int64_t i = threadIdx.x; i < a.hidden; i += kThreads) {
    const float value = value_at(i);
    keep(i, value);
    out[i] = rounded<T>(value);
  }
}

// Grid: rows, then q and k. Warp w has leaf w, its lanes the columns in turn.
__global__ void __launch_bounds__(kThreads) square_leaves(const SquaresArguments a) {
  await_inputs();
  const bool is_k = blockIdx.y == 1;
  const int64_t m = blockIdx.x, first = is_k ? a.k_begin : 0;
  const LeafEnds& leaves = is_k ? a.k : a.q;
  const int leaf = static_cast<int>(threadIdx.x / kWarp);
  const float* part = a.qkv + m * a.stride + first;
  float sum = 0;
  const int end = leaf < leaves.count ? leaves.end[leaf] : 0;
  for (int i = leaves.begin(leaf) + static_cast<int>(threadIdx.x % kWarp); i < end;
       i += static_cast<int>(kWarp)) {
    const float value = a.bias ? part[i] + a.bias[first + i] : part[i];
    sum = fmaf(value, value, sum);
  }
  sum = sum_of_warp(sum);
  auto* sums = shared_memory<float>();
  if (threadIdx.x % kWarp == 0) sums[leaf] = sum;
  sync_block();
  float values[kMaxSlices];
  OUTRIDER_UNROLL
  for (int i = 0; i < kMaxSlices; ++i) values[i] = sums[i];
  if (threadIdx.x == 0) a.out[2 * m + (is_k ? 1 : 0)] = tree_sum(values, leaves.count);
}

__device__ __forceinline__ bool is_finite(bf16 value) { return (value.bits & 0x7f80) != 0x7f80; }

// Whether all of a value head is finite as bf16: asked by the warp that stores it, and by that of its key.
__device__ __forceinline__ bool is_finite_head(const float* head, const float* bias, int d) {
  float lost = 0;
  for (int i = static_cast<int>(threadIdx.x % kWarp); i < d; i += static_cast<int>(kWarp))
    if (!is_finite(to_bf16(bias ? head[i] + bias[i] : head[i]))) lost = 1;
  return sum_of_warp(lost) == 0;
}

// One warp per token and head; heads are q, then k, then v.
constexpr int kMaxPairs = 4;  // of dimensions per lane, at most: head_dim up to 256
template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    rotate_heads(const DeviceBatch batch, const KvLayer layer, const RopeArguments a) {
  const int heads = a.q_heads + 2 * layer.kv_heads;
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const bool exists = unit < a.rows * heads;
  const int64_t m = exists ? unit / heads : 0;
  const int h = static_cast<int>(unit % heads), lane = static_cast<int>(threadIdx.x % kWarp);
  const int d = layer.head_dim;
  const HeadPairs pairs{a.turned, d / 2, a.interleaved};
  const bool is_q = h < a.q_heads, is_v = h >= a.q_heads + layer.kv_heads;
  float* head = a.qkv + m * a.stride + h * d;
  // As in attention: written several kernels ago, but perhaps after this multiprocessor last read it.
  const int32_t position = load_of_others(batch.positions + m);
  constexpr auto kTokens = static_cast<int32_t>(kBlockTokens);
  int32_t block = 0, slot = 0;
  if (!is_q) {
    slot = slot_of(batch, m, position);
    block = load_of_others(batch.tables + load_of_others(batch.row_table + m) * batch.table_stride +
                           slot / kTokens);
  }
  float cosines[kMaxPairs], sines[kMaxPairs];
  OUTRIDER_UNROLL
  for (int j = 0; j < kMaxPairs; ++j) {
    const int i = lane + j * static_cast<int>(kWarp);
    cosines[j] = i < a.turned ? a.cosines[static_cast<int64_t>(position) * a.turned + i] : 0.0f;
    sines[j] = i < a.turned ? a.sines[static_cast<int64_t>(position) * a.turned + i] : 0.0f;
  }
  await_inputs();  // the batch itself was there long before
  if (!exists) return;

  float low[kMaxPairs], high[kMaxPairs], squares = 0;
  OUTRIDER_UNROLL
  for (int j = 0; j < kMaxPairs; ++j) {
    const int i = lane + j * static_cast<int>(kWarp);
    low[j] = high[j] = 0;
    if (i >= pairs.all) continue;
    const int l = pairs.low(i), u = pairs.high(i);
    low[j] = a.bias ? head[l] + a.bias[h * d + l] : head[l];
    high[j] = a.bias ? head[u] + a.bias[h * d + u] : head[u];
    if (a.norms_rotated && !is_v && i < a.turned) {
      const float turned = low[j] * cosines[j] - high[j] * sines[j];
      high[j] = high[j] * cosines[j] + low[j] * sines[j];
      low[j] = turned;
    }
    squares = fmaf(high[j], high[j], fmaf(low[j], low[j], squares));
  }
  const float* norm = is_q ? a.q_norm : is_v ? nullptr : a.k_norm;
  float mean = sum_of_warp(squares) / static_cast<float>(d);
  if (a.squares && !is_v) {
    norm += (is_q ? h : h - a.q_heads) * d;
    mean = a.squares[2 * m + (is_q ? 0 : 1)] / static_cast<float>(is_q ? a.q_size : a.k_size);
  }
  const float scale = 1.0f / sqrtf(mean + a.epsilon);
  // Rows of one attention tile share the values of the tile's last row, with weights of 0 for later
  // positions. So values in the cache must be finite. A value that is not finite makes its key NaN instead,
  // which reaches only the rows that attend to it.
  bool is_lost = false;
  if (sizeof(T) == sizeof(bf16) && !is_q) {
    const int to_value = is_v ? 0 : layer.kv_heads * d;
    is_lost = !is_finite_head(head + to_value, a.bias ? a.bias + h * d + to_value : nullptr, d);
  }
  const auto store = [&](int32_t i, float value) {
    if (is_lost) value = is_v ? 0.0f : NAN;
    const int32_t kv_head = h - a.q_heads - (is_v ? layer.kv_heads : 0), token = slot % kTokens;
    T* to = static_cast<T*>(is_v ? layer.values : layer.keys);
    to[is_v ? layer.value_offset(block, kv_head, token, i) : layer.key_offset(block, kv_head, token, i)] =
        rounded<T>(value);
  };
  OUTRIDER_UNROLL
  for (int j = 0; j < kMaxPairs; ++j) {
    const int i = lane + j * static_cast<int>(kWarp);
    if (i >= pairs.all) continue;
    const int l = pairs.low(i), u = pairs.high(i);
    float x = low[j], y = high[j];
    if (norm) {
      x = x * scale * norm[l];
      y = y * scale * norm[u];
    }
    if (!a.norms_rotated && !is_v && i < a.turned) {
      const float turned = x * cosines[j] - y * sines[j];
      y = y * cosines[j] + x * sines[j];
      x = turned;
    }
    if (is_q) {
      head[l] = x;
      head[u] = y;
    } else {
      store(l, x);
      store(u, y);
    }
  }
}

template <class Gate, class T>
__global__ void __launch_bounds__(kThreads)
    gate_rows(const float* gate_up, const float* bias, int64_t rows, int64_t columns, T* out) {
  await_inputs();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= rows * columns) return;
  const int64_t m = at / columns, i = at % columns;
  float gate = gate_up[m * 2 * columns + i], up = gate_up[m * 2 * columns + columns + i];
  if (bias) {
    gate = gate + bias[i];
    up = up + bias[columns + i];
  }
  out[at] = rounded<T>(Gate::of(gate) * up);
}

__global__ void __launch_bounds__(kThreads)
    scale_and_cap_all(float* x, int64_t count, float factor, float cap) {
  await_inputs();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= count) return;
  const float scaled = x[at] * factor;
  x[at] = cap > 0 ? cap * tanhf(scaled / cap) : scaled;
}

template <class Gate>
void gate_mul(StreamView stream, const float* gate_up, const float* bias, int64_t rows, int64_t columns,
              WeightType type, void* out) {
  if (rows * columns == 0) return;
  const LaunchShape shape{.grid_x = static_cast<unsigned>((rows * columns + kThreads - 1) / kThreads),
                          .threads = kThreads,
                          .early = true};
  if (type == WeightType::kBFloat16)
    launch(stream, shape, &gate_rows<Gate, bf16>, gate_up, bias, rows, columns, static_cast<bf16*>(out));
  else
    launch(stream, shape, &gate_rows<Gate, float>, gate_up, bias, rows, columns, static_cast<float*>(out));
}

template <class T>
void launch_norm(StreamView stream, const LaunchShape& shape, const NormArguments& arguments) {
  if (arguments.added_weight)
    launch(stream, shape, &add_and_norm_rows<T, true>, arguments);
  else
    launch(stream, shape, &add_and_norm_rows<T, false>, arguments);
}

}  // namespace

void embed(StreamView stream, const DeviceBatch& batch, int64_t rows, const MatrixView& table,
           int64_t first_token, int64_t hidden, float factor, float* residual) {
  if (rows == 0) return;
  launch(stream,
         {.grid_x = static_cast<unsigned>(rows),
          .grid_y = static_cast<unsigned>((hidden + kThreads - 1) / kThreads),
          .threads = kThreads},
         &embed_rows, batch, table, static_cast<int32_t>(first_token), static_cast<int32_t>(hidden), factor,
         residual);
}

void gather_columns(StreamView stream, int64_t rows, const bf16* x, int64_t x_stride,
                    const MatrixView& weight, bf16* out, int64_t out_stride) {
  const int32_t count = weight.slices.k();
  if (rows == 0 || count == 0) return;
  CHECK(weight.columns && out_stride >= count, "{} columns, stride {}", count, out_stride);
  launch(stream,
         {.grid_x = static_cast<unsigned>(rows),
          .grid_y = static_cast<unsigned>((count + kThreads - 1) / kThreads),
          .threads = kThreads,
          .early = true},
         &gather_rows, x, x_stride, weight.columns, count, out, out_stride);
}

void add_and_norm(StreamView stream, const NormArguments& arguments) {
  if (arguments.rows == 0) return;
  CHECK(arguments.added || !arguments.added_weight, "a norm of nothing");
  const LaunchShape shape{.grid_x = static_cast<unsigned>(arguments.rows),
                          .threads = kThreads,
                          .shared_bytes = 2 * kWarps * sizeof(float),
                          .early = true};
  if (arguments.type == WeightType::kBFloat16)
    launch_norm<bf16>(stream, shape, arguments);
  else
    launch_norm<float>(stream, shape, arguments);
}

void sum_squares(StreamView stream, const SquaresArguments& arguments) {
  static_assert(kWarps == kMaxSlices);
  if (arguments.rows == 0) return;
  launch(stream,
         {.grid_x = static_cast<unsigned>(arguments.rows),
          .grid_y = 2,
          .threads = kThreads,
          .shared_bytes = kWarps * sizeof(float),
          .early = true},
         &square_leaves, arguments);
}

void rotate_and_store(StreamView stream, const DeviceBatch& batch, const KvLayer& layer,
                      const RopeArguments& arguments) {
  CHECK(layer.head_dim % 2 == 0 && layer.head_dim <= 2 * kMaxPairs * static_cast<int>(kWarp), "head_dim {}",
        layer.head_dim);
  CHECK(arguments.turned <= layer.head_dim / 2, "{} of {} pairs turn", arguments.turned, layer.head_dim / 2);
  const int64_t units = arguments.rows * (arguments.q_heads + 2 * layer.kv_heads);
  if (units == 0) return;
  const LaunchShape shape{
      .grid_x = static_cast<unsigned>((units + kWarps - 1) / kWarps), .threads = kThreads, .early = true};
  RopeArguments a = arguments;
  if (a.stride == 0) a.stride = int64_t{a.q_heads + 2 * layer.kv_heads} * layer.head_dim;
  if (layer.type == KvType::kBFloat16)
    launch(stream, shape, &rotate_heads<bf16>, batch, layer, a);
  else
    launch(stream, shape, &rotate_heads<float>, batch, layer, a);
}

void silu_mul(StreamView stream, const float* gate_up, const float* bias, int64_t rows, int64_t columns,
              WeightType type, void* out) {
  gate_mul<Silu>(stream, gate_up, bias, rows, columns, type, out);
}

void gelu_tanh_mul(StreamView stream, const float* gate_up, const float* bias, int64_t rows, int64_t columns,
                   WeightType type, void* out) {
  gate_mul<GeluTanh>(stream, gate_up, bias, rows, columns, type, out);
}

void scale_and_cap(StreamView stream, float* x, int64_t count, float factor, float cap) {
  if (count == 0) return;
  launch(stream,
         {.grid_x = static_cast<unsigned>((count + kThreads - 1) / kThreads),
          .threads = kThreads,
          .early = true},
         &scale_and_cap_all, x, count, factor, cap);
}

}  // namespace outrider::cuda
