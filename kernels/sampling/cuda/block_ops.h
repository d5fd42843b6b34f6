// Sums, maxima and searches over the integers of one block of threads; included by kernels only. Every thread
// of the block calls them.
#pragma once

#include "base/cuda_device.h"
#include "base/random.h"
#include "kernels/sampling/cuda/row_batch.h"

namespace outrider::cuda {

constexpr int kThreads = 256;
constexpr int kTokensPerThread = kPartTokens / kThreads;
static_assert(kMaxParts == kThreads);

struct Found {
  int32_t index = -1;
  uint64_t rest = 0;
};
struct BlockMemory {
  uint64_t values[kThreads];
  Found found;
};

__device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x); }

// Integers only: their sums have no order.
__device__ __forceinline__ void atomic_add(uint64_t* to, uint64_t value) {
#ifdef __CUDACC__
  atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
#else
  std::atomic_ref(*to).fetch_add(value, std::memory_order_relaxed);
#endif
}
// Returns what was there before.
__device__ __forceinline__ uint32_t atomic_add(uint32_t* to, uint32_t value) {
#ifdef __CUDACC__
  return atomicAdd(to, value);
#else
  return std::atomic_ref(*to).fetch_add(value, std::memory_order_relaxed);
#endif
}

template <class Combine>
__device__ __forceinline__ uint64_t reduce_block(uint64_t value, Combine combine) {
  uint64_t* values = shared_memory<BlockMemory>()->values;
  const int t = thread();
  values[t] = value;
  sync_block();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (t < half) values[t] = combine(values[t], values[t + half]);
    sync_block();
  }
  const uint64_t result = values[0];
  sync_block();
  return result;
}
__device__ __forceinline__ uint64_t sum_block(uint64_t value) {
  return reduce_block(value, [](uint64_t a, uint64_t b) { return a + b; });
}
__device__ __forceinline__ uint64_t max_block(uint64_t value) {
  return reduce_block(value, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
}

// The combination over the threads before this one, `none` for the first (Hillis and Steele 1986).
template <class Combine>
__device__ __forceinline__ uint64_t scan_before(uint64_t value, uint64_t none, Combine combine) {
  uint64_t* values = shared_memory<BlockMemory>()->values;
  const int t = thread();
  uint64_t sum = value;
  values[t] = sum;
  sync_block();
  for (int distance = 1; distance < kThreads; distance *= 2) {
    const uint64_t left = t >= distance ? values[t - distance] : none;
    sync_block();
    sum = combine(left, sum);
    values[t] = sum;
    sync_block();
  }
  const uint64_t before = t > 0 ? values[t - 1] : none;
  sync_block();
  return before;
}
__device__ __forceinline__ uint64_t sum_before(uint64_t value) {
  return scan_before(value, 0, [](uint64_t a, uint64_t b) { return a + b; });
}
__device__ __forceinline__ uint64_t max_before(uint64_t value) {
  return scan_before(value, 0, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
}

// The thread whose share covers `target`, and what is left of the target there; index -1 if none does.
__device__ __forceinline__ Found find_share(uint64_t share, uint64_t target) {
  Found* found = &shared_memory<BlockMemory>()->found;
  const uint64_t before = sum_before(share);
  if (thread() == 0) *found = {};
  sync_block();
  if (before <= target && target - before < share) *found = {thread(), target - before};
  sync_block();
  const Found result = *found;
  sync_block();
  return result;
}

// The first token of part `part` whose cumulative weight in it exceeds `target`, or -1.
template <class WeightOf>
__device__ __forceinline__ int32_t find_in_part(int32_t part, int32_t width, uint64_t target,
                                                WeightOf weight_of) {
  const int32_t begin = part * kPartTokens + thread() * kTokensPerThread;
  uint64_t share = 0;
  for (int32_t i = begin; i < begin + kTokensPerThread && i < width; ++i) share += weight_of(i);
  const Found mine = find_share(share, target);
  if (mine.index < 0) return -1;
  int32_t at = part * kPartTokens + mine.index * kTokensPerThread;
  for (uint64_t rest = mine.rest, weight; (weight = weight_of(at)) <= rest; ++at) rest -= weight;
  return at;
}

// The first of `width` tokens whose cumulative weight exceeds `target`, or -1. parts[p]: the weight of part
// p.
template <class WeightOf>
__device__ __forceinline__ int32_t find_token(const uint64_t* parts, int32_t part_count, int32_t width,
                                              uint64_t target, WeightOf weight_of) {
  const Found part = find_share(thread() < part_count ? parts[thread()] : 0, target);
  if (part.index < 0) return -1;
  return find_in_part(part.index, width, part.rest, weight_of);
}

// The tokens of this block's part that belong to this thread: use(local index).
template <class Use>
__device__ __forceinline__ void for_each_token(const RowBatch& b, Use use) {
  const int32_t begin = static_cast<int32_t>(blockIdx.x) * kPartTokens;
  for (int32_t i = begin + thread(); i < begin + kPartTokens && i < b.width; i += kThreads) use(i);
}

__device__ __forceinline__ float* logits_of(const RowBatch& b, int32_t row) {
  return b.logits + b.row[row].logits_row * b.stride;
}
// The row, or one in front of it, is not finite.
__device__ __forceinline__ bool has_failed(const RowBatch& b, int32_t row) {
  const int32_t e = b.row[row].request;
  return row - b.request[e].first_row >= b.finite_rows[e];
}

// Draws of random.h at a row.
struct Words {
  uint32_t w[4];
};
__device__ __forceinline__ Words draw_words(const RowInput& in, Purpose purpose, uint32_t round) {
  Words block{{0, static_cast<uint32_t>(in.position), round, static_cast<uint32_t>(purpose) << 24}};
  philox(block.w[0], block.w[1], block.w[2], block.w[3], in.seed);
  return block;
}
__device__ __forceinline__ uint64_t uniform_bits(const RowInput& in, Purpose purpose, uint32_t round) {
  const Words block = draw_words(in, purpose, round);
  return static_cast<uint64_t>(block.w[1]) << 32 | block.w[0];
}

// Kernels of this shape may start early: each kernel waits for its inputs first.
inline LaunchShape parts_by_rows(const RowBatch& b, int32_t rows) {
  return {.grid_x = static_cast<unsigned>(b.parts),
          .grid_y = static_cast<unsigned>(rows),
          .threads = kThreads,
          .shared_bytes = sizeof(BlockMemory),
          .early = true};
}
inline LaunchShape one_block_each(int32_t rows) {
  return {.grid_x = static_cast<unsigned>(rows),
          .threads = kThreads,
          .shared_bytes = sizeof(BlockMemory),
          .early = true};
}
// One thread for each request: little work, but no way to the host and back.
constexpr unsigned kRequestThreads = 32;
inline LaunchShape one_thread_each(int32_t requests) {
  return {.grid_x = (static_cast<unsigned>(requests) + kRequestThreads - 1) / kRequestThreads,
          .threads = kRequestThreads,
          .early = true};
}
__device__ __forceinline__ int32_t request_of_thread() {
  return static_cast<int32_t>(blockIdx.x * kRequestThreads + threadIdx.x);
}

}  // namespace outrider::cuda
