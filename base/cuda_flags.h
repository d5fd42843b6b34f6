// Flag words for communication between kernels of several devices, or of several streams of one device.
// Included by kernels only. Under the emulation the other kernel runs on another host thread.
#pragma once

#include "base/cuda_device.h"

#ifndef __CUDACC__
#include <atomic>
#include <chrono>
#include <thread>
#endif

namespace outrider::cuda {

#ifdef __CUDACC__

// Writes of this thread, and writes that it saw before a barrier, are visible to a thread that observes
// `value`.
__device__ __forceinline__ void publish(uint32_t* flag, uint32_t value) {
  __threadfence_system();
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
__device__ __forceinline__ uint32_t observe(const uint32_t* flag) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}
// Reads memory that another device wrote, never from a stale cache line.
template <class T>
__device__ __forceinline__ T load_fresh(const T* from) {
  return *const_cast<const volatile T*>(from);
}
__device__ __forceinline__ uint4 load_fresh(const uint4* from) {
  uint4 words;
  asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(from)
               : "memory");
  return words;
}
__device__ __forceinline__ uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}
__device__ __forceinline__ void pause_briefly() { __nanosleep(50); }

#else

inline void publish(uint32_t* flag, uint32_t value) {
  std::atomic_ref(*flag).store(value, std::memory_order_release);
}
inline uint32_t observe(const uint32_t* flag) {
  return std::atomic_ref(*const_cast<uint32_t*>(flag)).load(std::memory_order_acquire);
}
template <class T>
T load_fresh(const T* from) {
  return *from;
}
inline uint64_t nanoseconds() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}
inline void pause_briefly() { std::this_thread::sleep_for(std::chrono::microseconds(10)); }

#endif

}  // namespace outrider::cuda
