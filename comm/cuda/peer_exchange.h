// The device side of an operation of a peer group (peer_kernels.h): every block publishes what it stored and
// waits for the same block of all peers. Included by kernels only, here and where an operation is fused with
// arithmetic.
#pragma once

#include <algorithm>
#include <bit>

#include "base/cuda_device.h"
#include "base/cuda_flags.h"
#include "base/shared_code.h"
#include "comm/cuda/peer_kernels.h"
#include "comm/cuda/reduce.h"
#ifndef __CUDACC__
#include "tests/emulation/peer.h"
#endif

namespace outrider::cuda {

// The number of blocks for an operation that has work for `wanted` blocks.
inline unsigned exchange_blocks(const PeerView& view, int64_t wanted) {
  int64_t most = view.most_blocks;
#ifndef __CUDACC__
  most = std::min<int64_t>(most, emulation::most_peer_blocks);
#endif
  return static_cast<unsigned>(std::clamp<int64_t>(wanted, 1, most));
}

__device__ __forceinline__ void poison_all(const PeerView& view) {
  for (int r = 0; r < view.size; ++r) publish(&view.headers[r]->poison, 1);
}

// Another rank ended the group, unless a block of this rank ended it and published the reason.
__device__ __forceinline__ void report_abort(const PeerView& view) {
  if (observe(view.error) == 0) publish(view.error, kPeerAborted);
}

// Returns when peer `p` has published `operation`, or when the wait has become useless.
__device__ __forceinline__ void wait_for_peer(const PeerView& view, int p, uint32_t operation) {
  const PeerHeader& own = *view.headers[view.rank];
  const uint32_t* flag = &own.flags[blockIdx.x][p];
  const uint64_t start = nanoseconds();
  while (static_cast<int32_t>(observe(flag) - operation) < 0) {
    if (observe(&own.poison) != 0) {
      report_abort(view);
      return;
    }
    if (nanoseconds() - start > view.timeout_ns) {
      publish(view.error, static_cast<uint32_t>(1 + p));
      poison_all(view);
      return;
    }
    pause_briefly();
  }
}

// One operation of this block: `store(slot)` writes its elements, then all peers' elements are there for
// `load(parity)`. Every thread calls it. finished: a word of shared memory.
template <class Store, class Load>
__device__ __forceinline__ void exchange_block(const PeerView& view, uint32_t* finished, Store store,
                                               Load load) {
  PeerHeader& own = *view.headers[view.rank];
  const int t = static_cast<int>(threadIdx.x);
  if (t == 0) {
    *finished = observe(&own.poison);
    if (*finished) report_abort(view);
  }
  sync_block();
  if (*finished) return;
  const uint32_t operation = own.operations[blockIdx.x] + 1;
  const int64_t parity = (operation & 1) * view.slot_bytes;
  store(view.slots[view.rank] + parity);
  sync_block();
  const bool has_peer = t < view.size && t != view.rank;
  if (has_peer) publish(&view.headers[t]->flags[blockIdx.x][view.rank], operation);
  sync_block();  // all peers are notified before any thread waits, or three ranks could wait in a circle
  if (has_peer) wait_for_peer(view, t, operation);
  sync_block();
  // Also publishes for blocks that this operation does not have.
  for (unsigned c = blockIdx.x + threadIdx.x * gridDim.x; c < kMaxPeerBlocks; c += blockDim.x * gridDim.x)
    own.operations[c] = operation;
  load(parity);
}

// Elements go in groups of 16 bytes, one thread's work.
template <class T>
struct ElementGroup {
  static constexpr int kSize = 16 / sizeof(T);
  T values[kSize];
};

template <class T>
OUTRIDER_SHARED_CODE constexpr int64_t groups_of(int64_t elements) {
  return (elements + ElementGroup<T>::kSize - 1) / ElementGroup<T>::kSize;
}

// Element group g of `values`, of which only the first `count` elements exist; others are left alone.
template <class T>
__device__ __forceinline__ void load_group(const T* values, int64_t g, int64_t count,
                                           ElementGroup<T>& group) {
  constexpr int kSize = ElementGroup<T>::kSize;
  values += g * kSize;
  if (reinterpret_cast<uintptr_t>(values) % 16 == 0 && (g + 1) * kSize <= count) {
    group = std::bit_cast<ElementGroup<T>>(*reinterpret_cast<const uint4*>(values));
    return;
  }
  OUTRIDER_UNROLL
  for (int i = 0; i < kSize; ++i)
    if (g * kSize + i < count) group.values[i] = values[i];
}
template <class T>
__device__ __forceinline__ void store_group(T* values, int64_t g, int64_t count,
                                            const ElementGroup<T>& group) {
  constexpr int kSize = ElementGroup<T>::kSize;
  values += g * kSize;
  if (reinterpret_cast<uintptr_t>(values) % 16 == 0 && (g + 1) * kSize <= count) {
    *reinterpret_cast<uint4*>(values) = std::bit_cast<uint4>(group);
    return;
  }
  OUTRIDER_UNROLL
  for (int i = 0; i < kSize; ++i)
    if (g * kSize + i < count) values[i] = group.values[i];
}

// The reduction of element group g over the slots of all ranks. Slots are multiples of 16 bytes.
template <Reduction kReduction, class T>
__device__ __forceinline__ ElementGroup<T> combine_groups(const PeerView& view, int64_t parity, int64_t g) {
  ElementGroup<T> groups[kMaxDeviceRanks], result;
  OUTRIDER_UNROLL
  for (int r = 0; r < kMaxDeviceRanks; ++r)
    if (r < view.size)
      groups[r] = std::bit_cast<ElementGroup<T>>(
          load_fresh(reinterpret_cast<const uint4*>(view.slots[r] + parity) + g));
  OUTRIDER_UNROLL
  for (int i = 0; i < ElementGroup<T>::kSize; ++i) {
    T all[kMaxDeviceRanks];
    OUTRIDER_UNROLL
    for (int r = 0; r < kMaxDeviceRanks; ++r) all[r] = r < view.size ? groups[r].values[i] : T{};
    result.values[i] = combine_ranks<kReduction>(all, view.size);
  }
  return result;
}

}  // namespace outrider::cuda
