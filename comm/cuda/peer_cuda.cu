#include "comm/cuda/peer_exchange.h"
#include "comm/cuda/peer_kernels.h"
#include "comm/cuda/reduce.h"

namespace outrider::cuda {
namespace {

// The emulation pays for each thread, so it uses few.
#ifdef __CUDACC__
constexpr unsigned kThreads = 512;
#else
constexpr unsigned kThreads = 32;
#endif

__device__ __forceinline__ int64_t first_of_thread() {
  return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}
__device__ __forceinline__ int64_t stride_of_threads() { return static_cast<int64_t>(gridDim.x) * kThreads; }

template <Reduction kReduction>
__global__ void __launch_bounds__(kThreads)
    reduce_peers(const PeerView view, ElementOf<kReduction>* values, int64_t count) {
  using T = ElementOf<kReduction>;
  const int64_t first = first_of_thread(), stride = stride_of_threads();
  const int64_t groups = groups_of<T>(count);
  exchange_block(
      view, shared_memory<uint32_t>(),
      [&](std::byte* slot) {
        for (int64_t g = first; g < groups; g += stride) {
          ElementGroup<T> group = {};
          load_group(values, g, count, group);
          *(reinterpret_cast<uint4*>(slot) + g) = std::bit_cast<uint4>(group);
        }
      },
      [&](int64_t parity) {
        for (int64_t g = first; g < groups; g += stride)
          store_group(values, g, count, combine_groups<kReduction, T>(view, parity, g));
      });
}

__global__ void __launch_bounds__(kThreads)
    gather_peers(const PeerView view, const uint32_t* mine, uint32_t* all, int64_t stride, int64_t count) {
  exchange_block(
      view, shared_memory<uint32_t>(),
      [&](std::byte* slot) {
        for (int64_t i = first_of_thread(); i < count; i += stride_of_threads())
          reinterpret_cast<uint32_t*>(slot)[i] = mine[i];
      },
      [&](int64_t parity) {
        for (int64_t i = first_of_thread(); i < count; i += stride_of_threads())
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

// Each thread handles a group of elements, or several if there are more groups than threads.
LaunchShape shape_for(const PeerView& view, int64_t bytes) {
  constexpr int64_t kBlockBytes = int64_t{kThreads} * 16;
  return {.grid_x = exchange_blocks(view, (bytes + kBlockBytes - 1) / kBlockBytes),
          .threads = kThreads,
          .shared_bytes = sizeof(uint32_t)};
}

template <Reduction kReduction>
void reduce(StreamView stream, const PeerView& view, void* values, int64_t count) {
  const int64_t bytes = count * static_cast<int64_t>(sizeof(ElementOf<kReduction>));
  CHECK(bytes <= view.slot_bytes, "{} elements", count);
  launch(stream, shape_for(view, bytes), &reduce_peers<kReduction>, view,
         static_cast<ElementOf<kReduction>*>(values), count);
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
  launch(stream, shape_for(view, count * 4), &gather_peers, view, mine, all, stride, count);
}

void peer_depart(StreamView stream, const PeerView& view) {
  launch(stream, {.threads = kMaxDeviceRanks}, &depart_peers, view);
}

void peer_poison(StreamView stream, const PeerView& view) {
  launch(stream, {.threads = 1}, &poison_peers, view);
}

}  // namespace outrider::cuda
