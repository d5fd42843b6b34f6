// RMSNorm of one row by one block: its sums run over kNormThreads threads by index and then over one tree, in
// whichever kernel. Included by kernels only.
#pragma once

#include "base/cuda_device.h"
#include "transformer/ops/cuda_layout.h"

namespace outrider::cuda {

constexpr int kNormThreads = 256;
constexpr int kNormWarps = kNormThreads / static_cast<int>(kWarp);
static_assert(kNormWarps == kMaxSlices);

template <class T>
__device__ __forceinline__ T rounded(float value) {
  if constexpr (sizeof(T) == 2)
    return to_bf16(value);
  else
    return value;
}

__device__ __forceinline__ float sum_of_warp(float value) {
  for (int lanes = 16; lanes >= 1; lanes /= 2) value = value + shuffle_xor(value, lanes);
  return value;
}

// Every thread gets the sum. sums: kNormWarps floats of shared memory, free again after the next barrier.
__device__ __forceinline__ float sum_of_block(float value, float* sums) {
  value = sum_of_warp(value);
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = value;
  sync_block();
  float values[kMaxSlices];
  OUTRIDER_UNROLL
  for (int i = 0; i < kMaxSlices; ++i) values[i] = sums[i];
  return tree_sum(values, kMaxSlices);
}

// out[i] = value(i) / sqrt(mean(value^2) + epsilon) * weight[i]. `value` is asked twice for every i, by the
// same thread; `keep` gets it the second time.
template <class T, class Value, class Keep>
__device__ __forceinline__ void norm_row(int64_t hidden, float epsilon, const float* weight, float* sums,
                                         T* out, Value value, Keep keep) {
  float sum = 0;
  for (int64_t i = threadIdx.x; i < hidden; i += kNormThreads) {
    const float v = value(i);
    sum = fmaf(v, v, sum);
  }
  const float scale = 1.0f / sqrtf(sum_of_block(sum, sums) / static_cast<float>(hidden) + epsilon);
  for (int64_t i = threadIdx.x; i < hidden; i += kNormThreads) {
    const float v = value(i);
    keep(i, v);
    out[i] = rounded<T>(v * scale * weight[i]);
  }
}

}  // namespace outrider::cuda
