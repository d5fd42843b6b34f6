// The happens-before order of accesses on a device, for the race checker: the stamp of one access, and the
// set of accesses that the running emulated thread is ordered after. Streams, events and the host have vector
// clocks. Within a block, barriers of the block and of its warps order accesses. Between blocks, and between
// kernels that run side by side, only acquire and release atomics order them.
#pragma once

#include <array>
#include <bit>
#include <bitset>
#include <cstdint>
#include <mutex>
#include <vector>

#include "tests/emulation/races.h"

namespace outrider::cuda::emulation::races {

constexpr unsigned kMostThreads = 1024, kMaxWarps = kMostThreads / 32;

struct Stamp {
  uint64_t operation : 20 = 0;  // 0: none; such a stamp belongs to no kernel, or to the host
  uint64_t block : 13 = 0;
  uint64_t thread : 10 = 0;
  uint64_t time : 19 = 0;  // barriers of the block, its warps, and releases before
  uint64_t is_atomic : 1 = 0;
  uint64_t is_pending : 1 = 0;  // an asynchronous copy that was not awaited yet

  bool operator==(const Stamp& other) const {
    return std::bit_cast<uint64_t>(*this) == std::bit_cast<uint64_t>(other);
  }
  uint64_t warp() const { return thread / 32; }
  bool is_of_block(const Stamp& other) const { return operation == other.operation && block == other.block; }
};

// The accesses that an atomic released: the operations before it, and those that the releasing block was
// ordered after.
struct Part {
  Stamp at;
  uint32_t block_met = 0, warp_met = 0;
};
struct Knowledge {
  Clock clock;
  std::vector<Part> parts;

  bool is_empty() const { return clock.empty() && parts.empty(); }
  void add(const Knowledge& other);
  bool covers(Stamp access) const;
};

struct Operation {
  uint32_t stream = 0;
  const void* kernel = nullptr;  // of a copy none
};

// The operation that the calling thread of the host runs, and where in it that is.
struct Running {
  uint32_t operation = 0;  // 0: none
  Clock before, before_inputs;
  bool is_early = false;
  unsigned threads = 0, block = 0, thread = 0;
  uint32_t time = 0, block_met = 0;
  std::array<uint32_t, kMaxWarps> warp_met{};
  std::bitset<kMostThreads> has_inputs;
  // Acquired from other blocks, and handed on at barriers.
  bool has_knowledge = false;
  std::vector<Knowledge> of_thread;
  std::array<Knowledge, kMaxWarps> of_warp;
  Knowledge of_block, learned;  // learned: by any block

  Stamp stamp() const { return {.operation = operation, .block = block, .thread = thread, .time = time}; }
  const Clock& clock() const { return is_early && !has_inputs[thread] ? before_inputs : before; }
  bool comes_after(Stamp access, bool in_shared_memory) const;
  void acquire(const Knowledge& knowledge);
  Knowledge release();
};

Running& running();
// Guards everything that threads of the host share.
std::mutex& mutex();
const Operation& operation(uint32_t id);
bool host_comes_after(Stamp access);

}  // namespace outrider::cuda::emulation::races
