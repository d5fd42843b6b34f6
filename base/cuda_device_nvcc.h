// cuda_device.h under nvcc.
#pragma once

#include <cuda_runtime.h>

namespace outrider::cuda {

template <class T = unsigned char>
__device__ __forceinline__ T* shared_memory() {
  extern __shared__ __align__(128) unsigned char block_memory[];
  return reinterpret_cast<T*>(block_memory);
}

__device__ __forceinline__ void sync_block() { __syncthreads(); }
__device__ __forceinline__ void sync_warp() { __syncwarp(); }
__device__ __forceinline__ float shuffle_xor(float value, int lanes) {
  return __shfl_xor_sync(kAllLanes, value, lanes);
}

// d += a . b with a [16, 16] row-major and b [16, 8] column-major, bf16; d [16, 8] fp32. Lane l holds, with
// g = l / 4 and t = l % 4:  a: rows g, g + 8, columns 2t, 2t + 1, + 8;  b: rows 2t, 2t + 1, + 8, column g;
// d: rows g, g + 8, columns 2t, 2t + 1  (PTX ISA, mma.m16n8k16).
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// a * b + c for the bf16 in the low and in the high half of each word, each rounded once.
__device__ __forceinline__ uint32_t fma_pairs(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// Asynchronous copies of 16 or 4 bytes, global to shared; 16 go past L1: weights are read once. A thread sees
// the bytes of its own copies once it has waited for their group.
__device__ __forceinline__ void copy_async_16(void* shared, const void* global) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
}
__device__ __forceinline__ void copy_async_4(void* shared, const void* global) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(global) : "memory");
}
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Returns when all but the latest `kPending` groups of this thread have arrived.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

template <class... Parameters, class... Arguments>
void launch(StreamView stream, const LaunchShape& shape, void (*kernel)(Parameters...),
            const Arguments&... arguments) {
  const dim3 grid(shape.grid_x, shape.grid_y, shape.grid_z);
  kernel<<<grid, shape.threads, shape.shared_bytes, static_cast<cudaStream_t>(stream.handle())>>>(
      arguments...);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess)
    throw CudaError(std::string("CUDA: launching a kernel failed: ") + cudaGetErrorString(error));
}

// Kernels that want more than 48 KB of shared memory ask once, for the current device.
template <class... Parameters>
void allow_shared_bytes(void (*kernel)(Parameters...), size_t bytes) {
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess)
    throw CudaError(std::string("CUDA: raising a kernel's shared memory failed: ") +
                    cudaGetErrorString(error));
}

}  // namespace outrider::cuda
