// RMSNorm of one row by one block: its sums run over kNormThreads threads by index and then over one tree, in
// whichever kernel. Included by kernels only.
#pragma once

#include "base/cuda_device.h"
#include "kernels/cuda/cuda_layout.h"

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

// A thread's elements threadIdx.x + j * kNormThreads for j < kNormHeld, in registers, so that all of their
// reads are under way at once; those of longer rows are read when they are wanted.
#ifdef __CUDACC__
constexpr int kNormHeld = 32;
#else
constexpr int kNormHeld = 1;  // both ways, with the emulation's short rows
#endif
template <class Value>
__device__ __forceinline__ void hold(int64_t size, float (&held)[kNormHeld], Value value) {
  OUTRIDER_UNROLL
  for (int j = 0; j < kNormHeld; ++j) {
    const int64_t i = threadIdx.x + int64_t{j} * kNormThreads;
    held[j] = i < size ? value(i) : 0.0f;
  }
}

// The weights of a row; they wait for nothing.
struct NormWeights {
  const float* weight;
  float held[kNormHeld];

  __device__ __forceinline__ NormWeights(const float* from, int64_t hidden) : weight(from) {
    hold(from ? hidden : 0, held, [&](int64_t i) { return from[i]; });
  }
};

// 1 / sqrt(mean(value^2) + epsilon), in every thread; held: what hold() has of the row.
template <class Value>
__device__ __forceinline__ float norm_scale(int64_t hidden, float epsilon, float* sums,
                                            const float (&held)[kNormHeld], Value value) {
  float sum = 0;
  OUTRIDER_UNROLL
  for (int j = 0; j < kNormHeld; ++j) sum = fmaf(held[j], held[j], sum);  // beyond the row +0 changes nothing
  for (int64_t i = threadIdx.x + int64_t{kNormHeld} * kNormThreads; i < hidden; i += kNormThreads) {
    const float v = value(i);
    sum = fmaf(v, v, sum);
  }
  return 1.0f / sqrtf(sum_of_block(sum, sums) / static_cast<float>(hidden) + epsilon);
}

// out[i] = value(i) / sqrt(mean(value^2) + epsilon) * weight[i]. `value` is called once or twice for every i,
// by the same thread; `keep` gets its result in the end.
template <class T, class Value, class Keep>
__device__ __forceinline__ void norm_row(int64_t hidden, float epsilon, const NormWeights& weights,
                                         float* sums, T* out, Value value, Keep keep) {
  float held[kNormHeld];
  hold(hidden, held, value);
  const float scale = norm_scale(hidden, epsilon, sums, held, value);
  const int64_t behind = threadIdx.x + int64_t{kNormHeld} * kNormThreads;
  const auto store = [&](int64_t i, float v, float weight) {
    keep(i, v);
    out[i] = rounded<T>(v * scale * weight);
  };
  OUTRIDER_UNROLL
  for (int j = 0; j < kNormHeld; ++j) {
    const int64_t i = threadIdx.x + int64_t{j} * kNormThreads;
    if (i < hidden) store(i, held[j], weights.held[j]);
  }
  for (int64_t i = behind; i < hidden; i += kNormThreads) store(i, value(i), weights.weight[i]);
}

}  // namespace outrider::cuda
