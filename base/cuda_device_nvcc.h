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

// Transposes a matrix of 8 x 8 bf16, where lane l holds row l / 4, columns 2 (l % 4) and the next.
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t pair) {
  uint32_t turned;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(pair));
  return turned;
}

// a * b + c for the bf16 in the low and in the high half of each word, each rounded once.
__device__ __forceinline__ uint32_t fma_pairs(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// Bytes 1 and 3 of a word in the low halves of its half words.
__device__ __forceinline__ uint32_t odd_bytes(uint32_t word) { return __byte_perm(word, 0, 0x4341); }

__device__ __forceinline__ float float_of_half(uint16_t half) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
}

// Asynchronous copies of 16 or 4 bytes, global to shared. The 16-byte copy bypasses L1, because weights are
// read once. A thread sees the bytes of its own copies after waiting for their group.
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

// In a kernel that was started early (LaunchShape): waits until the kernels before it have ended and their
// writes can be read. Then the next kernel may be started; it will wait for this one. (PTX ISA,
// griddepcontrol; no effect unless the launch asked for it.)
__device__ __forceinline__ void await_inputs() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// For blocks that meet at a counter: writes of this thread, and writes that it saw before a barrier, are
// visible to threads that increment later, and to those they meet at a barrier after that. Returns the count
// before.
__device__ __forceinline__ uint32_t arrive(uint32_t* counter) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}
__device__ __forceinline__ uint4 load_of_others(const void* from) {
  return __ldcg(static_cast<const uint4*>(from));  // never from this multiprocessor's cache
}
__device__ __forceinline__ int32_t load_of_others(const int32_t* from) { return __ldcg(from); }
__device__ __forceinline__ uint32_t of_first_lane(uint32_t value) { return __shfl_sync(kAllLanes, value, 0); }

// Whether await_inputs() is compiled for devices from 9.0 on. Machine code for older devices lacks it, and
// the driver translates such code for a newer device, where no kernel would wait.
constexpr bool kWaitsForInputs = [] {
  bool is_there = false, all_are_new = true;
  for (int arch : {__CUDA_ARCH_LIST__}) {  // 900 is 9.0
    is_there = is_there || arch / 100 == 9;
    all_are_new = all_are_new && arch >= 900;
  }
  return is_there || all_are_new;
}();

inline void check_kernel(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // not reported twice
  throw CudaError(std::string("CUDA: ") + what + " failed: " + cudaGetErrorString(error) +
                  (error == cudaErrorNoKernelImageForDevice
                       ? " (compile with -DOUTRIDER_CUDA_ARCHITECTURES for this device)"
                       : ""));
}

template <class... Parameters, class... Arguments>
void launch(StreamView stream, const LaunchShape& shape, void (*kernel)(Parameters...),
            const Arguments&... arguments) {
  // A multiprocessor changes its split between L1 and shared memory only while it is idle. So a kernel with a
  // small share would keep the next one, with a large share, from starting early.
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  attributes[1].val.sharedMemCarveout = 100;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(shape.grid_x, shape.grid_y, shape.grid_z);
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = reinterpret_cast<cudaStream_t>(stream.handle());
  config.attrs = attributes;
  config.numAttrs = kWaitsForInputs && shape.early && stream.overlaps() ? 2 : 0;
  check_kernel(cudaLaunchKernelEx(&config, kernel, arguments...), "launching a kernel");
}

// Kernels with more than 48 KB of shared memory request it once, for the current device.
template <class... Parameters>
void allow_shared_bytes(void (*kernel)(Parameters...), size_t bytes) {
  check_kernel(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      "raising a kernel's shared memory");
}

}  // namespace outrider::cuda
