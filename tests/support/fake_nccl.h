// A stand-in for NCCL between threads of one process, over the emulation of streams: communicators that meet
// by their id and are ready when all have joined, in the background; groups of sends and receives that begin
// when their stream has come to them, match in order for each pair, and end when all of them have; abort. And
// what can go wrong.
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
  std::atomic<int64_t> fail_after{-1};  // groups of `fail_rank`: then its communicator reports an error
  std::atomic<int64_t> fail_rank{0};

  // What happened.
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
