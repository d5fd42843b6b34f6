#include "base/cuda_device.h"
#include "base/cuda_flags.h"
#include "comm/cuda/peer_kernels.h"
#include "comm/cuda/reduce.h"

namespace outrider::cuda {
namespace {

// Every operation of a group has the same shape. The emulation pays for each thread, and needs only a few.
#ifdef __CUDACC__
constexpr unsigned kThreads = 512, kBlocks = kPeerBlocks;
#else
constexpr unsigned kThreads = 32, kBlocks = 2;
#endif

__device__ void poison_all(const PeerView& view) {
  for (int r = 0; r < view.size; ++r) publish(&view.headers[r]->poison, 1);
}

// Somebody else ended the group, unless a block of this rank did and said why.
__device__ void report_abort(const PeerView& view) {
  if (observe(view.error) == 0) publish(view.error, kPeerAborted);
}

// Returns when peer `p` has published `operation`, or when there is no point in waiting.
__device__ void wait_for_peer(const PeerView& view, int p, uint32_t operation) {
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
// `load(parity)`. Every thread calls it.
template <class Store, class Load>
__device__ __forceinline__ void exchange_block(const PeerView& view, Store store, Load load) {
  PeerHeader& own = *view.headers[view.rank];
  uint32_t* finished = shared_memory<uint32_t>();
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

__device__ __forceinline__ int64_t first_element() {
  return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}
constexpr int64_t kStride = static_cast<int64_t>(kBlocks) * kThreads;

template <Reduction kReduction>
__global__ void __launch_bounds__(kThreads)
    reduce_peers(const PeerView view, ElementOf<kReduction>* values, int64_t count) {
  using T = ElementOf<kReduction>;
  exchange_block(
      view,
      [&](std::byte* slot) {
        for (int64_t i = first_element(); i < count; i += kStride) reinterpret_cast<T*>(slot)[i] = values[i];
      },
      [&](int64_t parity) {
        for (int64_t i = first_element(); i < count; i += kStride) {
          T all[kMaxDeviceRanks] = {};
          OUTRIDER_UNROLL
          for (int r = 0; r < kMaxDeviceRanks; ++r)
            if (r < view.size) all[r] = load_fresh(reinterpret_cast<const T*>(view.slots[r] + parity) + i);
          values[i] = combine_ranks<kReduction>(all, view.size);
        }
      });
}

__global__ void __launch_bounds__(kThreads)
    gather_peers(const PeerView view, const uint32_t* mine, uint32_t* all, int64_t stride, int64_t count) {
  exchange_block(
      view,
      [&](std::byte* slot) {
        for (int64_t i = first_element(); i < count; i += kStride)
          reinterpret_cast<uint32_t*>(slot)[i] = mine[i];
      },
      [&](int64_t parity) {
        for (int64_t i = first_element(); i < count; i += kStride)
          for (int r = 0; r < view.size; ++r)
            all[r * stride + i] = load_fresh(reinterpret_cast<const uint32_t*>(view.slots[r] + parity) + i);
      });
}

__global__ void depart_peers(const PeerView view) {
  const int p = static_cast<int>(threadIdx.x);
  const PeerHeader& own = *view.headers[view.rank];
  const bool has_peer = p < view.size && p != view.rank;
  if (has_peer) publish(&view.headers[p]->departed[view.rank], 1);
  sync_block();  // as in exchange_block
  const uint64_t start = nanoseconds();
  while (has_peer && observe(&own.departed[p]) == 0 && observe(&own.poison) == 0 &&
         nanoseconds() - start <= view.timeout_ns)
    pause_briefly();
}

__global__ void poison_peers(const PeerView view) {
  publish(view.error, kPeerAborted);
  poison_all(view);
}

constexpr LaunchShape kShape{.grid_x = kBlocks, .threads = kThreads, .shared_bytes = sizeof(uint32_t)};

template <Reduction kReduction>
void reduce(StreamView stream, const PeerView& view, void* values, int64_t count) {
  CHECK(count * static_cast<int64_t>(sizeof(ElementOf<kReduction>)) <= view.slot_bytes, "{} elements", count);
  launch(stream, kShape, &reduce_peers<kReduction>, view, static_cast<ElementOf<kReduction>*>(values), count);
}

}  // namespace

void peer_reduce(StreamView stream, const PeerView& view, Reduction reduction, void* values, int64_t count) {
  switch (reduction) {
    case Reduction::kTreeSum:
      return reduce<Reduction::kTreeSum>(stream, view, values, count);
    case Reduction::kMerge:
      return reduce<Reduction::kMerge>(stream, view, values, count);
    case Reduction::kSum:
      return reduce<Reduction::kSum>(stream, view, values, count);
    case Reduction::kMax:
      return reduce<Reduction::kMax>(stream, view, values, count);
    case Reduction::kMin:
      return reduce<Reduction::kMin>(stream, view, values, count);
  }
}

void peer_gather(StreamView stream, const PeerView& view, const uint32_t* mine, uint32_t* all, int64_t stride,
                 int64_t count) {
  CHECK(count * 4 <= view.slot_bytes, "{} words", count);
  launch(stream, kShape, &gather_peers, view, mine, all, stride, count);
}

void peer_depart(StreamView stream, const PeerView& view) {
  launch(stream, {.threads = kMaxDeviceRanks}, &depart_peers, view);
}

void peer_poison(StreamView stream, const PeerView& view) {
  launch(stream, {.threads = 1}, &poison_peers, view);
}

}  // namespace outrider::cuda
