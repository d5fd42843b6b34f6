// The device side of an operation of a peer group (peer_kernels.h): every block publishes what it stored and
// waits for the same block of all peers. Included by kernels only, here and where an operation is fused with
// arithmetic.
#pragma once

#include "base/cuda_device.h"
#include "base/cuda_flags.h"
#include "base/shared_code.h"
#include "comm/cuda/peer_kernels.h"

namespace outrider::cuda {

// Every operation has this many blocks, all of which take part. The emulation pays for each, and needs only a
// few.
#ifdef __CUDACC__
constexpr unsigned kExchangeBlocks = kPeerBlocks;
#else
constexpr unsigned kExchangeBlocks = 2;
#endif

__device__ __forceinline__ void poison_all(const PeerView& view) {
  for (int r = 0; r < view.size; ++r) publish(&view.headers[r]->poison, 1);
}

// Somebody else ended the group, unless a block of this rank did and said why.
__device__ __forceinline__ void report_abort(const PeerView& view) {
  if (observe(view.error) == 0) publish(view.error, kPeerAborted);
}

// Returns when peer `p` has published `operation`, or when there is no point in waiting.
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
  sync_block();  // nobody waits before all peers are told, or three ranks could wait in a circle
  if (has_peer) wait_for_peer(view, t, operation);
  sync_block();
  if (t == 0) own.operations[blockIdx.x] = operation;
  load(parity);
}

// What all ranks stored at element i of their slots.
template <class T>
__device__ __forceinline__ void load_peers(const PeerView& view, int64_t parity, int64_t i,
                                           T (&values)[kMaxDeviceRanks]) {
  OUTRIDER_UNROLL
  for (int r = 0; r < kMaxDeviceRanks; ++r)
    values[r] = r < view.size ? load_fresh(reinterpret_cast<const T*>(view.slots[r] + parity) + i) : T{};
}

}  // namespace outrider::cuda
