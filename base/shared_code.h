// Marks functions that run on the host and in CUDA kernels, so that shared definitions exist once and are
// tested on the host. Such a function uses no libm, so its bits are the same on both sides.
#pragma once

#ifdef __CUDACC__
#define OUTRIDER_SHARED_CODE __host__ __device__
#define OUTRIDER_UNROLL _Pragma("unroll")
#else
#define OUTRIDER_SHARED_CODE
#define OUTRIDER_UNROLL
#endif

// Small shared functions inside loops that are compiled for several instruction sets.
#define OUTRIDER_SHARED_INLINE OUTRIDER_SHARED_CODE inline __attribute__((always_inline))
