#include "tests/emulation/block.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "base/log.h"
#include "tests/emulation/copies.h"
#include "tests/emulation/fiber.h"
#include "tests/emulation/races.h"

namespace outrider::cuda {
namespace emulation {
namespace {

constexpr unsigned kMaxThreads = 1024;
constexpr size_t kWords = 10;  // the most one lane gives to a warp at once: fragments of an mma
constexpr int kGarbage = 0xcd;

std::atomic<uint64_t> kernel_count = 0, bytes_copied = 0;

enum class State : uint8_t { kReady, kAtExchange, kAtWarpBarrier, kAtBlockBarrier, kDone };

struct PendingCopy {
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
  bool ends_group = false;  // a commit, not a copy
};

// The asynchronous copies of a thread, in their order.
class Copies {
 public:
  void add(const PendingCopy& copy) {
    queue_.push_back(copy);
    groups_ += copy.ends_group;
  }
  void wait(int pending) {
    for (; groups_ > pending; ++first_) {
      const PendingCopy& copy = queue_[first_];
      if (copy.ends_group) {
        --groups_;
        continue;
      }
      std::memcpy(copy.to, copy.from, copy.bytes);
      races::copy_arrives(copy.to, copy.bytes);
    }
    if (first_ == queue_.size()) clear();
  }
  void clear() {
    queue_.clear();
    first_ = 0;
    groups_ = 0;
  }

 private:
  std::vector<PendingCopy> queue_;
  size_t first_ = 0;  // that has not arrived
  int groups_ = 0;    // from there on
};

struct alignas(64) Thread {  // what a switch reads is in one line of the cache
  Thread();
  Fiber fiber;
  int exchanges = 0;
  bool has_inputs = false;
  Copies copies;
};

// Values that the lanes of a warp exchange. There are two buffers, so that the next exchange cannot overwrite
// this one.
struct Warp {
  uint32_t words[2][kWarp * kWords] = {};
  float sums[2][kWarp][4] = {};
  bool has_sums[2] = {};
};

// Numbers from 0 to `below`, each about as likely: for orders of threads.
class Shuffler {
 public:
  unsigned operator()(unsigned below) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<unsigned>((state_ >> 32) * below >> 32);
  }

 private:
  uint64_t state_ = 1;
};

// One per thread of the host that launches: ranks that are threads emulate side by side.
struct Block {
  LaunchShape shape;
  const std::function<void()>* body = nullptr;
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<State> states;  // of the threads
  std::vector<Warp> warps;
  std::vector<unsigned> order;
  std::unique_ptr<unsigned char, decltype(&races::free_shared)> shared{nullptr, &races::free_shared};
  Shuffler random;
  uint64_t bytes_copied = 0;

  Thread& here() { return *threads[place.thread.x]; }
  Warp& warp() { return warps[place.thread.x / kWarp]; }
  [[gnu::always_inline]] void wait(State state) {
    states[place.thread.x] = state;
    here().fiber.yield();
  }
  void run();
  bool run_ready();
  bool release();
};

// The block that runs on the calling host thread, after that thread has launched a kernel.
constinit thread_local Block* current = nullptr;

Block& block() { return *current; }

void thread_main(void*) {
  for (;;) {
    (*block().body)();
    block().wait(State::kDone);
  }
}

Thread::Thread() : fiber(&thread_main, nullptr) {}

bool Block::run_ready() {
  bool any = false;
  for (unsigned i = shape.threads; i > 1; --i) std::swap(order[i - 1], order[random(i)]);
  for (const unsigned t : order) {
    if (states[t] != State::kReady) continue;
    any = true;
    place.thread.x = t;
    races::resume(t);
    threads[t]->fiber.resume();
  }
  return any;
}

// Opens the barriers that every live thread has reached.
bool Block::release() {
  const auto open = [&](unsigned begin, unsigned end, State barrier) {
    bool waits = false;
    for (unsigned t = begin; t < end; ++t) {
      if (states[t] == State::kDone) continue;
      if (states[t] != barrier) return false;
      waits = true;
    }
    for (unsigned t = begin; t < end; ++t)
      if (states[t] == barrier) states[t] = State::kReady;
    return waits;
  };
  bool any = open(0, shape.threads, State::kAtBlockBarrier);
  if (any) races::block_met();
  for (unsigned w = 0; w < shape.threads; w += kWarp) {
    const unsigned end = std::min(w + kWarp, shape.threads);
    any |= open(w, end, State::kAtExchange);  // values only: it orders no accesses to memory
    if (!open(w, end, State::kAtWarpBarrier)) continue;
    races::warp_met(w / kWarp);
    any = true;
  }
  return any;
}

void Block::run() {
  std::memset(shared.get(), kGarbage, shape.shared_bytes);
  for (unsigned t = 0; t < shape.threads; ++t) {
    states[t] = State::kReady;
    threads[t]->exchanges = 0;
    threads[t]->has_inputs = false;
    threads[t]->copies.clear();
  }
  const Index3 index = place.block;
  races::begin_block((index.z * shape.grid_y + index.y) * shape.grid_x + index.x);
  while (run_ready() || release()) {
  }
  races::end_block();
  for (unsigned t = 0; t < shape.threads; ++t)
    CHECK(!shape.early || threads[t]->has_inputs,
          "thread {} of a kernel that may start early waited for nothing", t);
  for (unsigned t = 0; t < shape.threads; ++t)
    CHECK(states[t] == State::kDone, "block ({}, {}, {}): thread {} waits at a barrier alone", index.x,
          index.y, index.z, t);
}

// Puts this lane's words where the warp sees them, waits for all lanes, and tells which of the two buffers.
[[gnu::always_inline]] inline int meet(std::span<const uint32_t> words) {
  Block& b = block();
  CHECK(words.size() <= kWords, "{} words", words.size());
  Warp& warp = b.warp();
  const int buffer = b.here().exchanges++ % 2;
  std::copy(words.begin(), words.end(), warp.words[buffer] + place.thread.x % kWarp * kWords);
  warp.has_sums[buffer] = false;
  b.wait(State::kAtExchange);
  return buffer;
}

[[gnu::always_inline]] inline const uint32_t* exchange_here(std::span<const uint32_t> words) {
  const int buffer = meet(words);
  return block().warp().words[buffer];
}

// All lanes' sums of one mma. The layout of fragments is the one of the PTX ISA. The hardware's order of
// additions is not documented; here the sum of a step is exact. A row of eight sums is one vector: on its own
// the compiler makes vectors along the depth, and spends its time on moving numbers between them.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)  // it is not ready yet when the form is chosen
[[gnu::target_clones("avx512f", "avx2", "default")]]
#endif
void multiply(const uint32_t* words, float (*sums)[4]) {
  constexpr unsigned kRows = 16, kColumns = 8, kDepth = 16;
  using Columns [[gnu::vector_size(kColumns * sizeof(double))]] = double;
  double a[kRows][kDepth];
  Columns b[kDepth];
  const auto half = [](uint32_t bits) { return static_cast<double>(std::bit_cast<float>(bits << 16)); };
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    const uint32_t* const mine = words + lane * kWords;
    const unsigned group = lane / 4, pair = lane % 4 * 2;
    for (unsigned w = 0; w < 4; ++w) {
      double* const to = a[group + w % 2 * 8] + pair + w / 2 * 8;
      to[0] = half(mine[w]);
      to[1] = half(mine[w] >> 16);
    }
    for (unsigned w = 0; w < 2; ++w) {
      b[pair + w * 8][group] = half(mine[4 + w]);
      b[pair + w * 8 + 1][group] = half(mine[4 + w] >> 16);
    }
  }
  for (unsigned row = 0; row < kRows; ++row) {
    const auto lane_of = [&](unsigned column) { return row % 8 * 4 + column / 2; };
    const auto index_of = [&](unsigned column) { return row / 8 * 2 + column % 2; };
    Columns sum;
    for (unsigned column = 0; column < kColumns; ++column)
      sum[column] =
          static_cast<double>(std::bit_cast<float>(words[lane_of(column) * kWords + 6 + index_of(column)]));
    for (unsigned k = 0; k < kDepth; ++k) sum += a[row][k] * b[k];
    for (unsigned column = 0; column < kColumns; ++column)
      sums[lane_of(column)][index_of(column)] = static_cast<float>(sum[column]);
  }
}

}  // namespace

constinit thread_local Place place;

uint64_t kernels_run() { return kernel_count.load(std::memory_order_relaxed); }
uint64_t copied_bytes() { return bytes_copied.load(std::memory_order_relaxed); }

const uint32_t* exchange(std::span<const uint32_t> words) { return exchange_here(words); }

void wait_for_copies(int pending) { block().here().copies.wait(pending); }

void run_blocks(const void* kernel, const LaunchShape& shape, const std::function<void()>& thread_body) {
  thread_local Block of_this_thread;
  Block& b = of_this_thread;
  current = &b;
  CHECK(shape.threads > 0 && shape.threads <= kMaxThreads && shape.grid_x > 0 && shape.grid_y > 0 &&
            shape.grid_z > 0 && shape.grid_y < 65536 && shape.grid_z < 65536,
        "launch of ({}, {}, {}) blocks of {} threads", shape.grid_x, shape.grid_y, shape.grid_z,
        shape.threads);
  kernel_count.fetch_add(1, std::memory_order_relaxed);
  b.shape = shape;
  b.body = &thread_body;
  while (b.threads.size() < shape.threads) b.threads.push_back(std::make_unique<Thread>());
  b.states.resize(shape.threads);
  b.warps.resize((shape.threads + kWarp - 1) / kWarp);
  b.order.resize(shape.threads);
  std::iota(b.order.begin(), b.order.end(), 0u);
  b.shared.reset(static_cast<unsigned char*>(races::allocate_shared(shape.shared_bytes)));
  place = {.block_extent = {shape.threads, 1, 1},
           .grid_extent = {shape.grid_x, shape.grid_y, shape.grid_z},
           .shared = b.shared.get()};
  races::begin_kernel(kernel, shape.early, shape.threads);
  for (unsigned z = 0; z < shape.grid_z; ++z)
    for (unsigned y = 0; y < shape.grid_y; ++y)
      for (unsigned x = 0; x < shape.grid_x; ++x) {
        place.block = {x, y, z};
        b.run();
      }
  bytes_copied.fetch_add(std::exchange(b.bytes_copied, 0), std::memory_order_relaxed);
}

}  // namespace emulation

void sync_block() { emulation::block().wait(emulation::State::kAtBlockBarrier); }
void sync_warp() { emulation::block().wait(emulation::State::kAtWarpBarrier); }

float shuffle_xor(float value, int lanes) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint32_t* all = emulation::exchange_here({&bits, 1});
  const unsigned lane = emulation::place.thread.x % kWarp;
  std::memcpy(&value, all + (lane ^ static_cast<unsigned>(lanes)) * emulation::kWords, 4);
  return value;
}

uint32_t transpose_8x8(uint32_t pair) {
  const uint32_t* all = emulation::exchange_here({&pair, 1});
  const unsigned lane = emulation::place.thread.x % kWarp, column = lane / 4, row = lane % 4 * 2;
  const auto element = [&](unsigned r) {
    const uint32_t word = all[(r * 4 + column / 2) * emulation::kWords];
    return column % 2 ? word >> 16 : word & 0xffffu;
  };
  return element(row) | element(row + 1) << 16;
}

uint32_t of_first_lane(uint32_t value) { return emulation::exchange_here({&value, 1})[0]; }
void await_inputs() {
  emulation::block().here().has_inputs = true;
  emulation::races::await_inputs();
}

// Lanes take turns: the first behind the exchange computes for all.
void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  uint32_t mine[emulation::kWords] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  std::memcpy(mine + 6, d, sizeof d);
  const int buffer = emulation::meet(mine);
  emulation::Warp& warp = emulation::block().warp();
  if (!std::exchange(warp.has_sums[buffer], true)) emulation::multiply(warp.words[buffer], warp.sums[buffer]);
  std::memcpy(d, warp.sums[buffer][emulation::place.thread.x % kWarp], sizeof d);
}

// Rounded twice, to fp32 and then to bf16: kernels use it where the result is exact.
uint32_t fma_pairs(uint32_t a, uint32_t b, uint32_t c) {
  const auto half = [](uint32_t word, int shift) {
    return to_float(bf16{static_cast<uint16_t>(word >> shift)});
  };
  const auto sum = [&](int shift) {
    return static_cast<uint32_t>(to_bf16(std::fma(half(a, shift), half(b, shift), half(c, shift))).bits);
  };
  return sum(0) | sum(16) << 16;
}

namespace {

template <size_t kBytes>
void copy_async(void* shared, const void* global, const void* code) {
  CHECK(
      reinterpret_cast<uintptr_t>(shared) % kBytes == 0 && reinterpret_cast<uintptr_t>(global) % kBytes == 0,
      "a copy of {} bytes that is not aligned", kBytes);
  std::memset(shared, emulation::kGarbage, kBytes);
  emulation::races::copy_begins(shared, global, kBytes, code);
  emulation::Block& block = emulation::block();
  block.here().copies.add({.to = shared, .from = global, .bytes = kBytes});
  block.bytes_copied += kBytes;
}

}  // namespace

void copy_async_16(void* shared, const void* global) {
  copy_async<16>(shared, global, __builtin_return_address(0));
}
void copy_async_4(void* shared, const void* global) {
  copy_async<4>(shared, global, __builtin_return_address(0));
}
void copy_async_commit() { emulation::block().here().copies.add({.ends_group = true}); }

}  // namespace outrider::cuda
