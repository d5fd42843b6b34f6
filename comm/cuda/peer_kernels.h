// One operation of a peer group is one kernel on every rank: each block copies its elements of the input into
// its rank's slot, publishes the operation's number in every peer's flags, waits for the same block of every
// peer, and reads all slots. Two slots alternate by the operation's parity. A rank that starts operation n +
// 2 has seen every peer in n + 1, whose kernel began after that of n had ended, so no block still reads the
// slot of n. The number lives in device memory, so that a captured operation keeps counting.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/cuda.h"
#include "comm/device_group.h"

namespace outrider::cuda {

// An operation has as many blocks as it has work for, within a limit: the blocks of all ranks that share a
// device must be resident together, since they wait for each other, and leave a quarter of it to other
// kernels. Returns the limit for each of `ranks` ranks of a group, where earlier groups hold `held` blocks
// (peer_room.h): a first group leaves half of the device, and every later one half of the remaining room. 0:
// there is no room.
constexpr int kMaxPeerBlocks = 64;
constexpr int most_peer_blocks(int resident_blocks, int ranks, int held = 0) {
  const int room = resident_blocks * 3 / 4 - held;
  const int wished = (held == 0 ? resident_blocks / 2 : room / 2) / ranks;
  return ranks > room ? 0 : std::clamp(wished, 1, kMaxPeerBlocks);
}

// One rank's device memory, in this order; `slots` follow.
struct PeerHeader {
  uint32_t flags[kMaxPeerBlocks][kMaxDeviceRanks];  // by the peers: the last operation they published
  uint32_t poison;                                  // written by anyone: the group is finished
  uint32_t operations[kMaxPeerBlocks];              // done by this rank; between kernels all are the same
  uint32_t departed[kMaxDeviceRanks];               // by the peers: their last access is over
};
constexpr int64_t kPeerHeaderBytes = (static_cast<int64_t>(sizeof(PeerHeader)) + 255) / 256 * 256;

// The reason why a group is finished, in the pinned error word: 0 none, kPeerAborted, or 1 + the missing
// rank.
constexpr uint32_t kPeerAborted = 1000;

struct PeerView {
  int32_t rank = 0, size = 1;
  int64_t slot_bytes = 0;
  uint64_t timeout_ns = 0;
  int32_t most_blocks = 1;  // of an operation; the same on every rank
  PeerHeader* headers[kMaxDeviceRanks] = {};
  std::byte* slots[kMaxDeviceRanks] = {};  // [2][slot_bytes]
  uint32_t* error = nullptr;               // of this rank; pinned host memory
};

// values[i] = over all ranks; count elements fit into a slot.
void peer_reduce(StreamView stream, const PeerView& view, Reduction reduction, void* values, int64_t count);
// all[r * stride + i] = rank r's mine[i]; count words of 4 bytes fit into a slot.
void peer_gather(StreamView stream, const PeerView& view, const uint32_t* mine, uint32_t* all, int64_t stride,
                 int64_t count);
// Returns when all peers have called it too, or the group is finished, or the deadline passes.
void peer_depart(StreamView stream, const PeerView& view);
// Finishes the group on every rank.
void peer_poison(StreamView stream, const PeerView& view);

}  // namespace outrider::cuda
