// Copies inside one layer's keys and values.
#include "base/cuda_device.h"
#include "transformer/ops/cuda/cuda_ops.h"

namespace outrider::cuda {
namespace {

constexpr int kThreads = 128;

template <class T>
__global__ void __launch_bounds__(kThreads)
    copy_block_elements(const KvLayer layer, int32_t from, int32_t to) {
  const int64_t size = layer.block_elements();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= size) return;
  auto *keys = static_cast<T*>(layer.keys), *values = static_cast<T*>(layer.values);
  keys[to * size + i] = keys[from * size + i];
  values[to * size + i] = values[from * size + i];
}

}  // namespace

void copy_kv_block(StreamView stream, const KvLayer& layer, int32_t from, int32_t to) {
  const int64_t size = layer.block_elements();
  if (size == 0) return;
  const LaunchShape shape{.grid_x = static_cast<unsigned>((size + kThreads - 1) / kThreads),
                          .threads = kThreads};
  if (layer.type == KvType::kBFloat16)
    launch(stream, shape, &copy_block_elements<bf16>, layer, from, to);
  else
    launch(stream, shape, &copy_block_elements<float>, layer, from, to);
}

}  // namespace outrider::cuda
