// The language of kernels, and their launch. Under nvcc it is CUDA and a few of its instructions. Otherwise
// it is the emulation of emulation/block.h, which runs every thread of a block as a fiber, with real barriers
// and shuffled order, so that kernels are tested without a GPU.
// Rules: shared memory only through shared_memory(); a*b+c is fused only where fmaf says so (-fmad=false).
#pragma once

#include "base/bfloat16.h"
#include "base/cuda.h"

namespace outrider::cuda {

struct LaunchShape {
  unsigned grid_x = 1, grid_y = 1, grid_z = 1;
  unsigned threads = 128;
  size_t shared_bytes = 0;
  // On an overlapping stream the kernel may start before the one before it has ended. Each of its threads
  // must call await_inputs() before it reads memory that other kernels wrote, or writes anything.
  bool early = false;
};

// Unrolls a loop of unknown length `count` times, to keep several loads in flight.
#ifdef __CUDACC__
#define OUTRIDER_PRAGMA(text) _Pragma(#text)
#define OUTRIDER_UNROLL_BY(count) OUTRIDER_PRAGMA(unroll count)
#else
#define OUTRIDER_UNROLL_BY(count)
#endif

constexpr unsigned kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

}  // namespace outrider::cuda

#ifdef __CUDACC__
#include "base/cuda_device_nvcc.h"
#else
#include "tests/emulation/block.h"
#endif
