// cuda_device.h on the host. The threads of a block are fibers. Each fiber runs until a barrier, in an order
// that is shuffled at every turn, so a missing barrier gives a wrong result. Shared memory starts with
// garbage, an asynchronous copy arrives only when it is awaited, and a barrier that some threads miss aborts.
// Blocks and kernels run one after another, in order, so a passing kernel may still have races. tests/races
// therefore compiles the same kernels with every load and store reported, and the race checker (races.h)
// finds accesses that are unordered on a device.
#pragma once

#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <tuple>

#include "base/cuda_device.h"
#include "tests/emulation/stream.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define threadIdx (::outrider::cuda::emulation::thread_index())
#define blockIdx (::outrider::cuda::emulation::block_index())
#define blockDim (::outrider::cuda::emulation::block_extent())
#define gridDim (::outrider::cuda::emulation::grid_extent())

namespace outrider::cuda {
namespace emulation {

// CUDA's own vector types, as far as kernels here use it.
struct alignas(16) Words4 {
  uint32_t x, y, z, w;
};

struct alignas(8) Words2 {
  uint32_t x, y;
};

}  // namespace emulation
}  // namespace outrider::cuda

using uint4 = outrider::cuda::emulation::Words4;
using uint2 = outrider::cuda::emulation::Words2;

namespace outrider::cuda {
namespace emulation {

struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};
// Where the emulated thread stands that the calling thread of the host runs. The emulation alone writes it.
// Kernels ask for it in their inner loops, so it is read without a call.
struct Place {
  Index3 thread, block, block_extent, grid_extent;
  void* shared = nullptr;
};
extern constinit thread_local Place place;
inline Index3 thread_index() { return place.thread; }
inline Index3 block_index() { return place.block; }
inline Index3 block_extent() { return place.block_extent; }
inline Index3 grid_extent() { return place.grid_extent; }

// Puts this lane's words where the warp sees them, waits for all lanes, and returns lane l's at [l * 10].
const uint32_t* exchange(std::span<const uint32_t> words);
void wait_for_copies(int pending);

void run_blocks(const void* kernel, const LaunchShape& shape, const std::function<void()>& thread_body);

}  // namespace emulation

template <class T = unsigned char>
T* shared_memory() {
  return static_cast<T*>(emulation::place.shared);
}

void sync_block();
void sync_warp();
float shuffle_xor(float value, int lanes);
void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
uint32_t transpose_8x8(uint32_t pair);
uint32_t fma_pairs(uint32_t a, uint32_t b, uint32_t c);
inline uint32_t odd_bytes(uint32_t word) { return word >> 8 & 0x00ff00ffu; }
inline float float_of_half(uint16_t half) { return half_to_float(half); }
void copy_async_16(void* shared, const void* global);
void copy_async_4(void* shared, const void* global);
void copy_async_commit();
void await_inputs();
inline uint32_t arrive(uint32_t* counter) {
  return std::atomic_ref(*counter).fetch_add(1, std::memory_order_acq_rel);
}
inline uint4 load_of_others(const void* from) { return *static_cast<const uint4*>(from); }
inline int32_t load_of_others(const int32_t* from) { return *from; }
uint32_t of_first_lane(uint32_t value);
template <int kPending>
void copy_async_wait() {
  emulation::wait_for_copies(kPending);
}

template <class... Parameters, class... Arguments>
void launch(StreamView stream, const LaunchShape& shape, void (*kernel)(Parameters...),
            const Arguments&... arguments) {
  emulation::enqueue(stream, [shape, kernel, values = std::tuple<Parameters...>(arguments...)] {
    emulation::run_blocks(reinterpret_cast<const void*>(kernel), shape, [&] { std::apply(kernel, values); });
  });
}

template <class... Parameters>
void allow_shared_bytes(void (*)(Parameters...), size_t) {}

}  // namespace outrider::cuda
