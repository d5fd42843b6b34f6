// Collective operations on device memory, in stream order, among the ranks of one target group. Every rank
// queues the same operations with the same sizes in the same order on one stream. Float sums are taken in the
// balanced tree of collectives.h. A rank that is gone or late past the deadline makes wait() throw
// CollectiveError on every other rank, and the group is finished. With peers in other processes the
// destructor waits for theirs, as long as for an operation, because they may still be reading.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/cuda.h"
#include "base/status.h"
#include "comm/collectives.h"

namespace outrider::cuda {

enum class Reduction : uint8_t {
  kTreeSum,  // float; the number of ranks is a power of two
  kMerge,    // 32-bit words that are 0 on all ranks but one
  kSum,      // uint64_t
  kMax,
  kMin,
};
constexpr int64_t element_bytes(Reduction reduction) {
  return reduction == Reduction::kTreeSum || reduction == Reduction::kMerge ? 4 : 8;
}

constexpr int kMaxDeviceRanks = 8;

struct PeerView;

class DeviceGroup {
 public:
  virtual ~DeviceGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string name() const = 0;
  virtual int device() const = 0;  // current when the group was made; operations are queued on its streams
  // False: an operation waits for the stream on the host, so it cannot be captured in a graph.
  virtual bool is_capturable() const = 0;
  // For kernels that do an operation of the group themselves (comm/cuda/peer_exchange.h); null where there is
  // no peer memory. Valid as long as the group.
  virtual const PeerView* peer_view() const { return nullptr; }

  // Call before operations that the host will wait() for. Until then no other thread of this process
  // allocates or frees device memory, where ranks share the device (base/shared_pass.h). No effect if a pass
  // has begun.
  virtual void begin_pass() {}
  // wait() ends it too.
  virtual void end_pass() noexcept {}
  virtual bool is_in_pass() const { return false; }

  virtual void all_reduce(Reduction reduction, void* values, int64_t count, StreamView stream) = 0;
  // all[r * bytes ..) = rank r's bytes, a multiple of 4. `mine` and `all` do not overlap.
  virtual void all_gather(const void* mine, void* all, int64_t bytes, StreamView stream) = 0;

  // StreamView::synchronize for streams that such operations were queued on.
  virtual void wait(StreamView stream) = 0;
  // Makes every pending and later wait() on every rank throw; with NCCL, on other ranks by their deadline.
  // Graphs that hold operations of the group may outlive it, and must be gone before the group.
  virtual void abort() noexcept = 0;
};

// Goes through pinned host memory and the group's ordinary collectives: works everywhere, and is the
// reference. Also for one rank. `host` must outlive it.
std::unique_ptr<DeviceGroup> make_staged_group(Collectives& host);

// Each rank reads its peers' memory in one kernel. Ranks are threads, on one device or on several with peer
// access, or processes with a device each on one machine. Two processes on one device take turns in time
// slices, so their kernels would wait for each other in vain. Collective over `host`; a refusal is the same
// on every rank.
struct PeerOptions {
  std::chrono::milliseconds timeout{10'000};  // how long a kernel waits for its peers
  int64_t slot_bytes = int64_t{1} << 20;      // larger operations take several rounds
};
Result<std::unique_ptr<DeviceGroup>> make_peer_group(Collectives& host, const PeerOptions& options = {});

// NCCL, loaded at run time: gathers, then sums in the tree. One device per rank. Collective over `host`; a
// refusal is the same on every rank.
struct NcclOptions {
  std::chrono::milliseconds start_timeout{60'000};  // the library's first use loads all of its kernels
  std::chrono::milliseconds timeout{60'000};        // of a wait()
  int64_t slot_bytes = int64_t{1} << 20;            // larger reductions take several rounds
};
Result<std::unique_ptr<DeviceGroup>> make_nccl_group(Collectives& host, const NcclOptions& options = {});
// "NCCL 2.28.9 (libnccl.so.2)", or why there is none.
std::string describe_nccl();

// The fastest group that works among the ranks: peer memory, NCCL, or host memory. Collective over `host`.
std::unique_ptr<DeviceGroup> connect_devices(Collectives& host);

}  // namespace outrider::cuda
