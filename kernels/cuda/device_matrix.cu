// Packing of weights: every kernel here runs while a model is loaded, and never again.
#include "base/cuda_device.h"
#include "kernels/cuda/device_matrix.h"

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
  const int32_t row = to.place_of_row(static_cast<int32_t>(first_row + i / k));
  const auto column = static_cast<int32_t>(i % k);
  static_cast<T*>(to.data)[element_offset(to, row, column)] = staged[i];
}

__global__ void pack_scale_elements(const MatrixView to, int64_t first_row, int64_t rows,
                                    const bf16* staged) {
  const int64_t groups = to.groups();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= rows * groups) return;
  const CodeGroup group = group_at(to.slices, to.group_size(), static_cast<int32_t>(i % groups));
  to.scales[to.scale_at(to.place_of_row(static_cast<int32_t>(first_row + i / groups)), group)] = staged[i];
}

// Stores up to four codes from column `begin` on, which is a multiple of four columns behind a slice's start.
// In int4, the two bytes written hold these four codes only.
__device__ __forceinline__ void store_codes(const MatrixView& to, int32_t row, int32_t begin, int32_t count,
                                            const uint8_t (&codes)[4]) {
  auto* data = static_cast<uint8_t*>(to.data);
  if (!to.is_half_bytes()) {
    for (int32_t c = 0; c < count; ++c) data[code_offset(to.slices, row, begin + c)] = codes[c];
    return;
  }
  const int64_t at = half_byte_offset(to.slices, row, begin) / 2;
  data[at] = static_cast<uint8_t>(codes[0] | codes[2] << 4);
  data[at + 2] = static_cast<uint8_t>(codes[1] | codes[3] << 4);
}

// Word w of a step of a row per thread.
__global__ void pack_form_words(const MatrixView to, int64_t first_row, int64_t rows,
                                const uint16_t* staged) {
  const int64_t words = to.form.words, of_row = to.slices.steps() * words;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= rows * of_row) return;
  const int32_t row = to.place_of_row(static_cast<int32_t>(first_row + i / of_row));
  const auto step = static_cast<int32_t>(i % of_row / words);
  const int64_t at = scale_offset(to.slices, row, step, to.form.words, static_cast<int32_t>(i % words));
  to.scales[at] = bf16{staged[i]};
}

// One group of one row per thread, from stored codes of four bits.
__global__ void pack_half_bytes(const MatrixView to, int64_t first_row, int64_t rows, const uint8_t* staged) {
  const int64_t groups = to.groups();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= rows * groups) return;
  const CodeGroup group = group_at(to.slices, to.group_size(), static_cast<int32_t>(i % groups));
  const uint8_t* from = staged + i / groups * ((to.slices.k() + 1) / 2);
  for (int32_t c = 0; c < group.count; c += 4) {
    uint8_t codes[4] = {};
    const int32_t left = group.count - c, count = left < 4 ? left : 4;
    for (int32_t j = 0; j < count; ++j) {
      const int32_t column = group.begin + c + j;
      codes[j] = static_cast<uint8_t>(from[column / 2] >> (column % 2 * 4) & 15);
    }
    store_codes(to, to.place_of_row(static_cast<int32_t>(first_row + i / groups)), group.begin + c, count,
                codes);
  }
}

// One group of one row per thread.
template <class T>
__global__ void quantize_groups(const MatrixView to, int64_t first_row, int64_t rows, const T* staged) {
  const int64_t groups = to.groups();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= rows * groups) return;
  const int32_t row = to.place_of_row(static_cast<int32_t>(first_row + i / groups));
  const CodeGroup group = group_at(to.slices, to.group_size(), static_cast<int32_t>(i % groups));
  const T* weights = staged + i / groups * to.slices.k() + group.begin;
  float magnitude = 0, highest = 0;
  for (int32_t c = 0; c < group.count; ++c) {
    magnitude = fmaxf(magnitude, fabsf(number(weights[c])));
    highest = fmaxf(highest, number(weights[c]));
  }
  const bool is_signed = to.type == WeightType::kInt4 && highest < magnitude;
  const bf16 scale = scale_of_group(to.type, is_signed ? -magnitude : magnitude);
  const float inverse = magnitude == 0 ? 0.0f : inverse_of_scale(scale);
  to.scales[to.scale_at(row, group)] = scale;
  for (int32_t c = 0; c < group.count; c += 4) {
    uint8_t codes[4] = {};
    const int32_t left = group.count - c, count = left < 4 ? left : 4;
    for (int32_t j = 0; j < count; ++j) codes[j] = code_of_weight(to.type, number(weights[c + j]), inverse);
    store_codes(to, row, group.begin + c, count, codes);
  }
}

// Finaliser of splitmix64, as in base/hash.h.
__device__ __forceinline__ uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Uniform in (-scale, scale), by (row, column): independent of layout. Codes share one scale; fp16 has none,
// its numbers are of 1/16 to 1/8.
__global__ void noise_elements(const MatrixView to, uint64_t seed, float scale) {
  const int64_t k = to.slices.k();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= to.n * k) return;
  const auto word = static_cast<uint32_t>(mix(seed ^ mix(static_cast<uint64_t>(i))) >> 32);
  const float value = (static_cast<float>(word) * 0x1p-31f - 1.0f) * scale;
  const int64_t at =
      element_offset(to, to.place_of_row(static_cast<int32_t>(i / k)), static_cast<int32_t>(i % k));
  if (to.type == WeightType::kFloat32)
    static_cast<float*>(to.data)[at] = value;
  else if (to.type == WeightType::kBFloat16)
    static_cast<bf16*>(to.data)[at] = to_bf16(value);
  else if (to.type == WeightType::kFloat16)
    static_cast<uint16_t*>(to.data)[at] = static_cast<uint16_t>((word & 0x83ffu) | 0x2c00u);
  else
    static_cast<uint8_t*>(to.data)[at] =
        code_of_weight(to.type, value, inverse_of_scale(scale_of_group(to.type, scale)));
}

// Fills codes with noise: any byte is one, or two of four bits.
__global__ void noise_bytes(uint8_t* data, int64_t bytes, uint64_t seed) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < bytes) data[i] = static_cast<uint8_t>(mix(seed ^ mix(static_cast<uint64_t>(i))) >> 56);
}

__global__ void fill_scales(const MatrixView to, int64_t count, float scale) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) to.scales[i] = scale_of_group(to.type, scale);
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
int64_t code_bytes(WeightType type, int64_t n, const Slices& slices) {
  return tiled_steps(n, slices) * kGroupTileBytes * weight_bits(type) / 8;
}
int64_t code_bytes(const CodeForm& form, int64_t n, const Slices& slices) {
  return tiled_steps(n, slices) * kGroupTileBytes * code_bits(form.code) / 8;
}
int64_t word_bytes(const CodeForm& form, int64_t n, const Slices& slices) {
  return tiled_steps(n, slices) * kTileRows * form.words * int64_t{sizeof(bf16)};
}
int64_t scale_count(WeightType type, int64_t n, const Slices& slices) {
  return tiled_steps(n, slices) * kTileRows * (kGroupStep / group_columns(type));
}

void check_rows(const MatrixView& to, int64_t first_row, int64_t rows) {
  CHECK(first_row >= 0 && first_row + rows <= to.n, "rows [{}, {}) of {}", first_row, first_row + rows, to.n);
}

}  // namespace

int64_t DeviceMatrix::bytes_for(WeightType type, int64_t n, const Slices& slices) {
  if (type == WeightType::kFloat32) return round_up(n, kWarp) * slices.k() * int64_t{4};
  if (type == WeightType::kBFloat16 || type == WeightType::kFloat16)
    return tiled_steps(n, slices) * kTileElements * int64_t{2};
  return code_bytes(type, n, slices) + scale_count(type, n, slices) * static_cast<int64_t>(sizeof(bf16));
}

int64_t DeviceMatrix::bytes_for(const CodeForm& form, int64_t n, const Slices& slices, bool has_columns) {
  return code_bytes(form, n, slices) + word_bytes(form, n, slices) +
         (has_columns ? slices.k() * int64_t{sizeof(int32_t)} : 0);
}

DeviceMatrix::DeviceMatrix(const CodeForm& form, int64_t n, const Slices& slices,
                           std::span<const int32_t> columns, StreamView stream)
    : memory_(bytes_for(form, n, slices, !columns.empty())) {
  CHECK(slices.k() % 2 == 0 && slices.step_columns == kGroupStep, "{} columns in steps of {}", slices.k(),
        slices.step_columns);
  CHECK(columns.empty() || static_cast<int64_t>(columns.size()) == slices.k(), "{} of {} columns",
        columns.size(), slices.k());
  std::byte* const words = memory_.data() + code_bytes(form, n, slices);
  auto* const order = reinterpret_cast<int32_t*>(words + word_bytes(form, n, slices));
  view_ = {.type = WeightType::kCodes,
           .data = memory_.data(),
           .scales = reinterpret_cast<bf16*>(words),
           .n = static_cast<int32_t>(n),
           .padded_n = static_cast<int32_t>(round_up(n, kWarp)),
           .slices = slices,
           .form = form,
           .columns = columns.empty() ? nullptr : order};
  copy(order, columns.data(), static_cast<int64_t>(columns.size()), stream);
}

DeviceMatrix::DeviceMatrix(WeightType type, int64_t n, const Slices& slices)
    : memory_(bytes_for(type, n, slices)) {
  CHECK(type == WeightType::kFloat32 || slices.k() % 2 == 0, "{} columns: activations come in pairs",
        slices.k());
  CHECK(slices.step_columns == step_columns(type), "type {} in steps of {} columns", static_cast<int>(type),
        slices.step_columns);
  view_ = {.type = type,
           .data = memory_.data(),
           .scales = is_quantized(type)
                         ? reinterpret_cast<bf16*>(memory_.data() + code_bytes(type, n, slices))
                         : nullptr,
           .n = static_cast<int32_t>(n),
           .padded_n = static_cast<int32_t>(round_up(n, kWarp)),
           .slices = slices};
}

void DeviceMatrix::pair_rows() {
  CHECK(view_.n % kTileRows == 0 && view_.type != WeightType::kFloat32, "pairs of {} rows", view_.n);
  view_.paired = view_.n / 2;
}

void pack_rows(StreamView stream, const MatrixView& to, int64_t first_row, int64_t rows, const void* staged) {
  check_rows(to, first_row, rows);
  const int64_t elements = rows * to.slices.k();
  if (to.type == WeightType::kFloat32)
    launch_each(stream, elements, &pack_elements<float>, to, first_row, rows,
                static_cast<const float*>(staged));
  else if (to.type == WeightType::kBFloat16 || to.type == WeightType::kFloat16)
    launch_each(stream, elements, &pack_elements<bf16>, to, first_row, rows,
                static_cast<const bf16*>(staged));
  else if (to.is_half_bytes())
    launch_each(stream, rows * to.groups(), &pack_half_bytes, to, first_row, rows,
                static_cast<const uint8_t*>(staged));
  else
    launch_each(stream, elements, &pack_elements<uint8_t>, to, first_row, rows,
                static_cast<const uint8_t*>(staged));
}

void pack_scales(StreamView stream, const MatrixView& to, int64_t first_row, int64_t rows,
                 const bf16* staged) {
  check_rows(to, first_row, rows);
  launch_each(stream, rows * to.groups(), &pack_scale_elements, to, first_row, rows, staged);
}

void pack_words(StreamView stream, const MatrixView& to, int64_t first_row, int64_t rows,
                const uint16_t* staged) {
  check_rows(to, first_row, rows);
  launch_each(stream, rows * to.slices.steps() * to.form.words, &pack_form_words, to, first_row, rows,
              staged);
}

void quantize_rows(StreamView stream, const MatrixView& to, int64_t first_row, int64_t rows, WeightType from,
                   const void* staged) {
  check_rows(to, first_row, rows);
  CHECK(is_quantized(to.type) && !is_quantized(from), "from type {} to type {}", static_cast<int>(from),
        static_cast<int>(to.type));
  const int64_t groups = rows * to.groups();
  if (from == WeightType::kBFloat16)
    launch_each(stream, groups, &quantize_groups<bf16>, to, first_row, rows,
                static_cast<const bf16*>(staged));
  else
    launch_each(stream, groups, &quantize_groups<float>, to, first_row, rows,
                static_cast<const float*>(staged));
}

void fill_noise(StreamView stream, const MatrixView& to, uint64_t seed, float scale) {
  if (to.type == WeightType::kInt4 || to.type == WeightType::kCodes) {
    const bool is_form = to.type == WeightType::kCodes;
    const int64_t bytes =
        is_form ? code_bytes(to.form, to.n, to.slices) : code_bytes(to.type, to.n, to.slices);
    launch_each(stream, bytes, &noise_bytes, static_cast<uint8_t*>(to.data), bytes, seed);
    if (is_form) return;  // its words stay zeros
  } else {
    launch_each(stream, static_cast<int64_t>(to.n) * to.slices.k(), &noise_elements, to, seed, scale);
  }
  if (!to.scales) return;
  const int64_t scales = scale_count(to.type, to.n, to.slices);
  launch_each(stream, scales, &fill_scales, to, scales, scale);
}

}  // namespace outrider::cuda
