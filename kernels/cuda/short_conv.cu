// Short convolutions over the rows that a layer keeps of a path's tokens. A thread has one channel of one
// row.
#include "base/cuda_device.h"
#include "kernels/cuda/norm_row.h"
#include "kernels/cuda/row_slots.h"

namespace outrider::cuda {
namespace {

constexpr int kThreads = 128;
constexpr auto kTokens = static_cast<int32_t>(kBlockTokens);

__device__ __forceinline__ float as_float(float value) { return value; }
__device__ __forceinline__ float as_float(bf16 value) { return to_float(value); }

// Grid: rows, channels.
template <class T>
__global__ void __launch_bounds__(kThreads)
    store_rows(const DeviceBatch batch, const KvLayer layer, const ShortConvArguments a) {
  const int64_t m = blockIdx.x;
  const int c = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  const int32_t slot = slot_of(batch, m, load_of_others(batch.positions + m));
  const int32_t block = load_of_others(
      batch.tables + load_of_others(batch.row_table + m) * batch.table_stride + slot / kTokens);
  await_inputs();
  if (c >= a.channels) return;
  const float* const row = a.projected + m * 3 * a.channels;
  static_cast<T*>(layer.keys)[layer.key_offset(block, 0, slot % kTokens, c)] =
      rounded<T>(row[c] * row[2 * a.channels + c]);
}

// Grid: rows, channels. T: of the cache, O: of outputs.
template <class T, class O>
__global__ void __launch_bounds__(kThreads)
    convolve_rows(const DeviceBatch batch, const KvLayer layer, const ShortConvArguments a) {
  const int64_t m = blockIdx.x;
  const int c = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  const int32_t position = load_of_others(batch.positions + m);
  const int32_t* const table = batch.tables + load_of_others(batch.row_table + m) * batch.table_stride;
  const RowSlots slots = slots_of(batch, m);
  await_inputs();
  if (c >= a.channels) return;
  float sum = 0;
  for (int32_t tap = 0; tap < a.count; ++tap) {
    const int32_t from = position - (a.count - 1) + tap;
    if (from < 0) continue;
    const int32_t slot =
        from < slots.tail_begin ? from : load_of_others(slots.tail + (from - slots.tail_begin));
    const int32_t block = load_of_others(table + slot / kTokens);
    const T kept = static_cast<const T*>(layer.keys)[layer.key_offset(block, 0, slot % kTokens, c)];
    sum = fmaf(a.taps[static_cast<int64_t>(tap) * a.channels + c], as_float(kept), sum);
  }
  const float gate = a.projected[m * 3 * a.channels + a.channels + c];
  static_cast<O*>(a.out)[m * a.channels + c] = rounded<O>(sum * gate);
}

LaunchShape shape_of(const ShortConvArguments& a) {
  return {.grid_x = static_cast<unsigned>(a.rows),
          .grid_y = static_cast<unsigned>((a.channels + kThreads - 1) / kThreads),
          .threads = kThreads,
          .early = true};
}

void check(const KvLayer& layer, const ShortConvArguments& a) {
  CHECK(layer.kv_heads == 1 && layer.head_dim == a.channels && !layer.has_values(),
        "a layer of {} heads of {} for {} channels", layer.kv_heads, layer.head_dim, a.channels);
}

}  // namespace

void store_conv_rows(StreamView stream, const DeviceBatch& batch, const KvLayer& layer,
                     const ShortConvArguments& arguments) {
  if (arguments.rows == 0 || arguments.channels == 0) return;
  check(layer, arguments);
  const bool is_bf16 = layer.type == KvType::kBFloat16;
  launch(stream, shape_of(arguments), is_bf16 ? &store_rows<bf16> : &store_rows<float>, batch, layer,
         arguments);
}

void short_convolution(StreamView stream, const DeviceBatch& batch, const KvLayer& layer,
                       const ShortConvArguments& arguments) {
  if (arguments.rows == 0 || arguments.channels == 0) return;
  check(layer, arguments);
  const bool is_bf16_kv = layer.type == KvType::kBFloat16, is_bf16 = arguments.type == WeightType::kBFloat16;
  launch(stream, shape_of(arguments),
         is_bf16_kv ? is_bf16 ? &convolve_rows<bf16, bf16> : &convolve_rows<bf16, float>
         : is_bf16 ? &convolve_rows<float, bf16>
                    : &convolve_rows<float, float>,
         batch, layer, arguments);
}

}  // namespace outrider::cuda
