// A stand-in for NCCL between threads of one process, over the emulation of streams. Communicators meet by
// their id and become ready in the background when all ranks have joined. A group of sends and receives
// begins when its stream reaches it, matches in order for each pair of ranks, and ends when every operation
// has ended. Abort and failures can be provoked.
#pragma once

#include <atomic>
#include <cstdint>

#include "comm/cuda/nccl_api.h"

namespace outrider::testing {

struct FakeNccl {
  // Faults.
  std::atomic<bool> init_hangs{false};
  std::atomic<bool> lingers{false};     // kernels end only when this does, aborted or not
  std::atomic<int64_t> mute_after{-1};  // groups of rank 0: what it sends later never arrives
  std::atomic<int64_t> deaf_rank{-1};   // receives nothing after its first group
  std::atomic<int64_t> fail_after{-1};  // groups of `fail_rank`: then, all of them done, it reports an error
  std::atomic<int64_t> fail_rank{0};

  // Counters of events.
  std::atomic<int64_t> made{0}, aborted{0}, sent{0}, mismatched{0};

  void reset() {
    init_hangs = lingers = false;
    fail_rank = 0;
    for (auto* fault : {&mute_after, &deaf_rank, &fail_after}) *fault = -1;
    for (auto* count : {&made, &aborted, &sent, &mismatched}) *count = 0;
  }
};
FakeNccl& fake_nccl();

const cuda::NcclApi& fake_nccl_api();

}  // namespace outrider::testing
