// Packing of weights: every kernel here runs while a model is loaded, and never again.
#include "base/cuda_device.h"
#include "transformer/ops/device_matrix.h"

namespace outrider::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float number(bf16 value) { return to_float(value); }
__device__ __forceinline__ float number(float value) { return value; }

// One element per thread.
template <class T>
__global__ void pack_elements(const MatrixView to, int64_t first_row, int64_t rows, const T* staged) {
  const int64_t k = to.slices.k();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= rows * k) return;
  const auto row = static_cast<int32_t>(first_row + i / k), column = static_cast<int32_t>(i % k);
  static_cast<T*>(to.data)[element_offset(to, row, column)] = staged[i];
}

__global__ void pack_scale_elements(const MatrixView to, int64_t first_row, int64_t rows,
                                    const bf16* staged) {
  const int64_t steps = to.slices.steps();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= rows * steps) return;
  to.scales[scale_offset(to.slices, static_cast<int32_t>(first_row + i / steps),
                         static_cast<int32_t>(i % steps))] = staged[i];
}

// One group of one row per thread.
template <class T>
__global__ void quantize_groups(const MatrixView to, int64_t first_row, int64_t rows, const T* staged) {
  const Slices& slices = to.slices;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= rows * slices.steps()) return;
  const auto row = static_cast<int32_t>(first_row + i / slices.steps());
  const auto step = static_cast<int32_t>(i % slices.steps());
  int32_t slice = 0;
  while (step >= slices.first_step[slice + 1]) ++slice;
  const int32_t begin = slices.begin[slice] + (step - slices.first_step[slice]) * kGroupStep;
  const int32_t left = slices.begin[slice + 1] - begin;
  const int32_t count = left < kGroupStep ? left : kGroupStep;
  const T* weights = staged + i / slices.steps() * slices.k() + begin;
  float magnitude = 0;
  for (int32_t c = 0; c < count; ++c) magnitude = fmaxf(magnitude, fabsf(number(weights[c])));
  const bf16 scale = scale_of_group(to.type, magnitude);
  const float inverse = inverse_of_scale(scale);
  to.scales[scale_offset(slices, row, step)] = scale;
  for (int32_t c = 0; c < count; ++c)
    static_cast<uint8_t*>(to.data)[code_offset(slices, row, begin + c)] =
        code_of_weight(to.type, number(weights[c]), inverse);
}

// Finaliser of splitmix64, as in base/hash.h.
__device__ __forceinline__ uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Uniform in (-scale, scale), by (row, column): independent of layout. Codes share one scale.
__global__ void noise_elements(const MatrixView to, uint64_t seed, float scale) {
  const int64_t k = to.slices.k();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= to.n * k) return;
  const auto word = static_cast<uint32_t>(mix(seed ^ mix(static_cast<uint64_t>(i))) >> 32);
  const float value = (static_cast<float>(word) * 0x1p-31f - 1.0f) * scale;
  const int64_t at = element_offset(to, static_cast<int32_t>(i / k), static_cast<int32_t>(i % k));
  if (to.type == WeightType::kFloat32)
    static_cast<float*>(to.data)[at] = value;
  else if (to.type == WeightType::kBFloat16)
    static_cast<bf16*>(to.data)[at] = to_bf16(value);
  else
    static_cast<uint8_t*>(to.data)[at] =
        code_of_weight(to.type, value, inverse_of_scale(scale_of_group(to.type, scale)));
}

__global__ void fill_scales(const MatrixView to, float scale) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t tiles = (to.n + kTileRows - 1) / kTileRows;
  if (i < tiles * kTileRows * to.slices.steps()) to.scales[i] = scale_of_group(to.type, scale);
}

template <class... Parameters, class... Arguments>
void launch_each(StreamView stream, int64_t elements, void (*kernel)(Parameters...),
                 const Arguments&... arguments) {
  if (elements == 0) return;
  launch(stream, {.grid_x = static_cast<unsigned>((elements + kThreads - 1) / kThreads), .threads = kThreads},
         kernel, arguments...);
}

int64_t tiled_steps(int64_t n, const Slices& slices) {
  return round_up(n, kTileRows) / kTileRows * slices.steps();
}
int64_t code_bytes(int64_t n, const Slices& slices) { return tiled_steps(n, slices) * kGroupTileBytes; }

void check_rows(const MatrixView& to, int64_t first_row, int64_t rows) {
  CHECK(first_row >= 0 && first_row + rows <= to.n, "rows [{}, {}) of {}", first_row, first_row + rows, to.n);
}

}  // namespace

int64_t DeviceMatrix::bytes_for(WeightType type, int64_t n, const Slices& slices) {
  if (type == WeightType::kFloat32) return round_up(n, kWarp) * slices.k() * int64_t{4};
  if (type == WeightType::kBFloat16) return tiled_steps(n, slices) * kTileElements * int64_t{2};
  return code_bytes(n, slices) + tiled_steps(n, slices) * kTileRows * static_cast<int64_t>(sizeof(bf16));
}

DeviceMatrix::DeviceMatrix(WeightType type, int64_t n, const Slices& slices)
    : memory_(bytes_for(type, n, slices)) {
  CHECK(type == WeightType::kFloat32 || slices.k() % 2 == 0, "{} columns: activations come in pairs",
        slices.k());
  CHECK(type != WeightType::kInt4 && slices.step_columns == step_columns(type),
        "type {} in steps of {} columns", static_cast<int>(type), slices.step_columns);
  view_ = {.type = type,
           .data = memory_.data(),
           .scales =
               is_quantized(type) ? reinterpret_cast<bf16*>(memory_.data() + code_bytes(n, slices)) : nullptr,
           .n = static_cast<int32_t>(n),
           .padded_n = static_cast<int32_t>(round_up(n, kWarp)),
           .slices = slices};
}

void pack_rows(StreamView stream, const MatrixView& to, int64_t first_row, int64_t rows, const void* staged) {
  check_rows(to, first_row, rows);
  const int64_t elements = rows * to.slices.k();
  if (to.type == WeightType::kFloat32)
    launch_each(stream, elements, &pack_elements<float>, to, first_row, rows,
                static_cast<const float*>(staged));
  else if (to.type == WeightType::kBFloat16)
    launch_each(stream, elements, &pack_elements<bf16>, to, first_row, rows,
                static_cast<const bf16*>(staged));
  else
    launch_each(stream, elements, &pack_elements<uint8_t>, to, first_row, rows,
                static_cast<const uint8_t*>(staged));
}

void pack_scales(StreamView stream, const MatrixView& to, int64_t first_row, int64_t rows,
                 const bf16* staged) {
  check_rows(to, first_row, rows);
  launch_each(stream, rows * to.slices.steps(), &pack_scale_elements, to, first_row, rows, staged);
}

void quantize_rows(StreamView stream, const MatrixView& to, int64_t first_row, int64_t rows, WeightType from,
                   const void* staged) {
  check_rows(to, first_row, rows);
  CHECK(is_quantized(to.type) && !is_quantized(from), "from type {} to type {}", static_cast<int>(from),
        static_cast<int>(to.type));
  const int64_t groups = rows * to.slices.steps();
  if (from == WeightType::kBFloat16)
    launch_each(stream, groups, &quantize_groups<bf16>, to, first_row, rows,
                static_cast<const bf16*>(staged));
  else
    launch_each(stream, groups, &quantize_groups<float>, to, first_row, rows,
                static_cast<const float*>(staged));
}

void fill_noise(StreamView stream, const MatrixView& to, uint64_t seed, float scale) {
  launch_each(stream, static_cast<int64_t>(to.n) * to.slices.k(), &noise_elements, to, seed, scale);
  if (to.scales) launch_each(stream, tiled_steps(to.n, to.slices) * kTileRows, &fill_scales, to, scale);
}

}  // namespace outrider::cuda
