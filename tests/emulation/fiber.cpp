#include "tests/emulation/fiber.h"

#include <ucontext.h>

#include <atomic>
#include <new>

#include "base/buffer.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace outrider::cuda::emulation {
namespace {
constexpr int64_t kStackBytes = 64 << 10;
// Stacks whose tops lay a power of two apart would all take the same few places of a cache.
constexpr int64_t kStackTops = 64, kBetweenTops = 640;

int64_t next_stack_bytes() {
  static std::atomic<int64_t> count = 0;
  return kStackBytes + count++ % kStackTops * kBetweenTops;
}
}  // namespace

#ifdef OUTRIDER_INLINE_FIBERS

Fiber::Fiber(Body body, void* argument) : stack_(next_stack_bytes()) {
  constexpr size_t kAlignment = 16;
  const auto top = reinterpret_cast<uintptr_t>(stack_.data() + stack_.size()) / kAlignment * kAlignment;
  // As behind a call from nowhere: buffers are zero, so debuggers and exceptions find an end of the stack.
  inside_ = {.stack = reinterpret_cast<void*>(top - sizeof(void*)),
             .frame = nullptr,
             .code = reinterpret_cast<void*>(&Fiber::enter),
             .body = body,
             .argument = argument};
}

void Fiber::enter(Place*, Place* to) noexcept {
  to->body(to->argument);
  __builtin_unreachable();
}

#else

// A fiber starts by swapcontext, which makes two system calls for the signal mask. Later switches are the
// compiler's own setjmp, which stores where to go on and leaves it to the function around it to keep what it
// needs: a few instructions. The sanitizers follow swapcontext, so there it stays.
struct Fiber::Contexts {
  alignas(64) void* inside_jump[5] = {};  // with `started` in one line of the cache: all that a switch reads
  bool started = false;
  ucontext_t outside{}, inside{};
  const int64_t stack_bytes = next_stack_bytes();
  Buffer<std::byte> stack{stack_bytes};
  Body body = nullptr;
  void* argument = nullptr;
#if defined(__SANITIZE_ADDRESS__)
  const void* outside_stack = nullptr;
  size_t outside_bytes = 0;
  void* outside_fake = nullptr;
  void* inside_fake = nullptr;
#elif defined(__SANITIZE_THREAD__)
  void* tsan_fiber = __tsan_create_fiber(0);
  void* tsan_outside = nullptr;
#endif

  static void enter(unsigned high, unsigned low) {
    auto* self = reinterpret_cast<Contexts*>(static_cast<uintptr_t>(high) << 32 | low);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &self->outside_stack, &self->outside_bytes);
#endif
    self->body(self->argument);
    __builtin_unreachable();
  }
};

Fiber::Fiber(Body body, void* argument) : contexts_(std::make_unique<Contexts>()) {
  Contexts& c = *contexts_;
  c.body = body;
  c.argument = argument;
  getcontext(&c.inside);
  c.inside.uc_stack.ss_sp = c.stack.data();
  c.inside.uc_stack.ss_size = static_cast<size_t>(c.stack_bytes);
  const auto self = reinterpret_cast<uintptr_t>(&c);
  makecontext(&c.inside, reinterpret_cast<void (*)()>(&Contexts::enter), 2, static_cast<unsigned>(self >> 32),
              static_cast<unsigned>(self));
}

Fiber::~Fiber() {
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(contexts_->tsan_fiber);
#endif
}

#if defined(__SANITIZE_ADDRESS__)

void Fiber::resume() {
  Contexts& c = *contexts_;
  __sanitizer_start_switch_fiber(&c.outside_fake, c.stack.data(), static_cast<size_t>(c.stack_bytes));
  swapcontext(&c.outside, &c.inside);
  __sanitizer_finish_switch_fiber(c.outside_fake, nullptr, nullptr);
}
void Fiber::yield() {
  Contexts& c = *contexts_;
  __sanitizer_start_switch_fiber(&c.inside_fake, c.outside_stack, c.outside_bytes);
  swapcontext(&c.inside, &c.outside);
  __sanitizer_finish_switch_fiber(c.inside_fake, &c.outside_stack, &c.outside_bytes);
}

#elif defined(__SANITIZE_THREAD__)

void Fiber::resume() {
  Contexts& c = *contexts_;
  c.tsan_outside = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(c.tsan_fiber, 0);
  swapcontext(&c.outside, &c.inside);
}
void Fiber::yield() {
  Contexts& c = *contexts_;
  __tsan_switch_to_fiber(c.tsan_outside, 0);
  swapcontext(&c.inside, &c.outside);
}

#else

namespace {
// Apart, and unknown to its callers: otherwise the compiler takes what stands behind a call for dead, and
// with it the place where another jump goes on.
[[gnu::noipa]] void jump(void** to) { __builtin_longjmp(to, 1); }

// Where the fiber that runs on the calling thread goes back to. There is one at a time.
constinit thread_local void* outside_jump[5] = {};
}  // namespace

void Fiber::resume() {
  Contexts& c = *contexts_;
  if (__builtin_setjmp(outside_jump) != 0) return;
  if (c.started) return jump(c.inside_jump);
  c.started = true;
  swapcontext(&c.outside, &c.inside);
}
void Fiber::yield() {
  Contexts& c = *contexts_;
  if (__builtin_setjmp(c.inside_jump) == 0) jump(outside_jump);
}

#endif
#endif

}  // namespace outrider::cuda::emulation
