#include "tests/emulation/block.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "base/log.h"
#include "tests/emulation/copies.h"
#include "tests/emulation/fiber.h"
#include "tests/emulation/races.h"

namespace outrider::cuda {
namespace emulation {
namespace {

constexpr unsigned kMaxThreads = 1024;
constexpr size_t kWords = 6;  // the most one lane gives to a warp at once: fragments of an mma
constexpr int kGarbage = 0xcd;

std::atomic<uint64_t> kernel_count = 0;

enum class State : uint8_t { kReady, kAtExchange, kAtWarpBarrier, kAtBlockBarrier, kDone };

struct PendingCopy {
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
  bool ends_group = false;  // a commit, not a copy
};

struct Thread {
  Thread();
  Fiber fiber;
  State state = State::kDone;
  int exchanges = 0;
  bool has_inputs = false;
  std::deque<PendingCopy> copies;
};

struct Warp {
  uint32_t words[2][kWarp * kWords] = {};  // two, so that the next exchange cannot overwrite this one
};

// One per thread of the host that launches: ranks that are threads emulate side by side.
struct Block {
  LaunchShape shape;
  Index3 index;
  unsigned current = 0;
  const std::function<void()>* body = nullptr;
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Warp> warps;
  std::vector<unsigned> order;
  std::unique_ptr<unsigned char, decltype(&races::free_shared)> shared{nullptr, &races::free_shared};
  std::minstd_rand random{1};

  Thread& here() { return *threads[current]; }
  void wait(State state) {
    Thread& thread = here();
    thread.state = state;
    thread.fiber.yield();
  }
  void run();
  bool run_ready();
  bool release();
};

Block& block() {
  thread_local Block instance;
  return instance;
}

void thread_main(void*) {
  for (;;) {
    (*block().body)();
    block().wait(State::kDone);
  }
}

Thread::Thread() : fiber(&thread_main, nullptr) {}

bool Block::run_ready() {
  bool any = false;
  std::shuffle(order.begin(), order.end(), random);
  for (unsigned t : order) {
    if (threads[t]->state != State::kReady) continue;
    any = true;
    current = t;
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
      if (threads[t]->state == State::kDone) continue;
      if (threads[t]->state != barrier) return false;
      waits = true;
    }
    for (unsigned t = begin; t < end; ++t)
      if (threads[t]->state == barrier) threads[t]->state = State::kReady;
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
    threads[t]->state = State::kReady;
    threads[t]->exchanges = 0;
    threads[t]->has_inputs = false;
    threads[t]->copies.clear();
  }
  races::begin_block((index.z * shape.grid_y + index.y) * shape.grid_x + index.x);
  while (run_ready() || release()) {
  }
  races::end_block();
  for (unsigned t = 0; t < shape.threads; ++t)
    CHECK(!shape.early || threads[t]->has_inputs,
          "thread {} of a kernel that may start early waited for nothing", t);
  for (unsigned t = 0; t < shape.threads; ++t)
    CHECK(threads[t]->state == State::kDone, "block ({}, {}, {}): thread {} waits at a barrier alone",
          index.x, index.y, index.z, t);
}

}  // namespace

Index3 thread_index() { return {block().current, 0, 0}; }
Index3 block_index() { return block().index; }
Index3 block_extent() { return {block().shape.threads, 1, 1}; }
Index3 grid_extent() {
  const LaunchShape& s = block().shape;
  return {s.grid_x, s.grid_y, s.grid_z};
}
uint64_t kernels_run() { return kernel_count.load(std::memory_order_relaxed); }
void* shared_bytes() { return block().shared.get(); }

const uint32_t* exchange(std::span<const uint32_t> words) {
  Block& b = block();
  CHECK(words.size() <= kWords, "{} words", words.size());
  uint32_t* buffer = b.warps[b.current / kWarp].words[b.here().exchanges++ % 2];
  std::copy(words.begin(), words.end(), buffer + b.current % kWarp * kWords);
  b.wait(State::kAtExchange);
  return buffer;
}

void wait_for_copies(int pending) {
  auto& copies = block().here().copies;
  int64_t groups = std::count_if(copies.begin(), copies.end(), [](const auto& c) { return c.ends_group; });
  for (; groups > pending; copies.pop_front())
    if (copies.front().ends_group) {
      --groups;
    } else {
      std::memcpy(copies.front().to, copies.front().from, copies.front().bytes);
      races::copy_arrives(copies.front().to, copies.front().bytes);
    }
}

void run_blocks(const void* kernel, const LaunchShape& shape, const std::function<void()>& thread_body) {
  Block& b = block();
  CHECK(shape.threads > 0 && shape.threads <= kMaxThreads && shape.grid_x > 0 && shape.grid_y > 0 &&
            shape.grid_z > 0 && shape.grid_y < 65536 && shape.grid_z < 65536,
        "launch of ({}, {}, {}) blocks of {} threads", shape.grid_x, shape.grid_y, shape.grid_z,
        shape.threads);
  kernel_count.fetch_add(1, std::memory_order_relaxed);
  b.shape = shape;
  b.body = &thread_body;
  while (b.threads.size() < shape.threads) b.threads.push_back(std::make_unique<Thread>());
  b.warps.resize((shape.threads + kWarp - 1) / kWarp);
  b.order.resize(shape.threads);
  std::iota(b.order.begin(), b.order.end(), 0u);
  b.shared.reset(static_cast<unsigned char*>(races::allocate_shared(shape.shared_bytes)));
  races::begin_kernel(kernel, shape.early, shape.threads);
  for (unsigned z = 0; z < shape.grid_z; ++z)
    for (unsigned y = 0; y < shape.grid_y; ++y)
      for (unsigned x = 0; x < shape.grid_x; ++x) {
        b.index = {x, y, z};
        b.run();
      }
}

}  // namespace emulation

void sync_block() { emulation::block().wait(emulation::State::kAtBlockBarrier); }
void sync_warp() { emulation::block().wait(emulation::State::kAtWarpBarrier); }

float shuffle_xor(float value, int lanes) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint32_t* all = emulation::exchange({&bits, 1});
  const unsigned lane = emulation::block().current % kWarp;
  std::memcpy(&value, all + (lane ^ static_cast<unsigned>(lanes)) * emulation::kWords, 4);
  return value;
}

uint32_t transpose_8x8(uint32_t pair) {
  const uint32_t* all = emulation::exchange({&pair, 1});
  const unsigned lane = emulation::block().current % kWarp, column = lane / 4, row = lane % 4 * 2;
  const auto element = [&](unsigned r) {
    const uint32_t word = all[(r * 4 + column / 2) * emulation::kWords];
    return column % 2 ? word >> 16 : word & 0xffffu;
  };
  return element(row) | element(row + 1) << 16;
}

uint32_t of_first_lane(uint32_t value) { return emulation::exchange({&value, 1})[0]; }
void await_inputs() {
  emulation::block().here().has_inputs = true;
  emulation::races::await_inputs();
}

// The layout of fragments is the one of the PTX ISA. The hardware's order of additions is not documented;
// here the sum of a step is exact.
void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  const uint32_t mine[emulation::kWords] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  const uint32_t* all = emulation::exchange(mine);
  const auto half = [&](unsigned lane, unsigned word, unsigned k) {
    const uint32_t pair = all[lane * emulation::kWords + word];
    return static_cast<double>(to_float(bf16{static_cast<uint16_t>(k % 2 ? pair >> 16 : pair)}));
  };
  const unsigned lane = emulation::block().current % kWarp;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = lane / 4 + (i >= 2 ? 8 : 0), column = lane % 4 * 2 + i % 2;
    double sum = static_cast<double>(d[i]);
    for (unsigned k = 0; k < 16; ++k)
      sum += half(row % 8 * 4 + k % 8 / 2, (row >= 8 ? 1u : 0u) + (k >= 8 ? 2u : 0u), k) *
             half(column * 4 + k % 8 / 2, 4 + (k >= 8 ? 1u : 0u), k);
    d[i] = static_cast<float>(sum);
  }
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

std::atomic<uint64_t> bytes_copied = 0;

void copy_async(void* shared, const void* global, size_t bytes, const void* code) {
  CHECK(reinterpret_cast<uintptr_t>(shared) % bytes == 0 && reinterpret_cast<uintptr_t>(global) % bytes == 0,
        "a copy of {} bytes that is not aligned", bytes);
  std::memset(shared, emulation::kGarbage, bytes);
  emulation::races::copy_begins(shared, global, bytes, code);
  emulation::block().here().copies.push_back({.to = shared, .from = global, .bytes = bytes});
  bytes_copied.fetch_add(bytes, std::memory_order_relaxed);
}

}  // namespace

uint64_t emulation::copied_bytes() { return bytes_copied.load(std::memory_order_relaxed); }

void copy_async_16(void* shared, const void* global) {
  copy_async(shared, global, 16, __builtin_return_address(0));
}
void copy_async_4(void* shared, const void* global) {
  copy_async(shared, global, 4, __builtin_return_address(0));
}
void copy_async_commit() { emulation::block().here().copies.push_back({.ends_group = true}); }

}  // namespace outrider::cuda
