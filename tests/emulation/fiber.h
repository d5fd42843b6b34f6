// Fibers for the emulation of a thread block: stacks that are switched by hand, all on one host thread.
#pragma once

#include <cstddef>
#include <memory>

#include "base/buffer.h"

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define OUTRIDER_INLINE_FIBERS
#endif

namespace outrider::cuda::emulation {

#ifdef OUTRIDER_INLINE_FIBERS

// A switch stores the stack pointer, the frame pointer and where to go on, and leaves it to the function
// around it to keep what it needs. It is a part of its callers. A processor predicts that a function returns
// to its last caller, which a switch of stacks makes wrong for each function that it returns from.
class Fiber {
 public:
  using Body = void (*)(void* argument);  // never returns: it yields for ever

  Fiber(Body body, void* argument);
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // From the thread that owns it: runs the fiber until it yields.
  [[gnu::always_inline]] void resume() { go(&outside_, &inside_); }
  // From inside.
  [[gnu::always_inline]] void yield() { go(&inside_, &outside_); }

 private:
  struct Place {
    void* stack;
    void* frame;
    void* code;
    Body body;  // of the beginning
    void* argument;
  };

  // A fiber begins in enter() with the arguments of go(): they are in the registers of a call.
  static void enter(Place* from, Place* to) noexcept;

  [[gnu::always_inline]] static inline void go(Place* from, Place* to) {
    asm volatile(
        "leaq 1f(%%rip), %%rax\n\t"
        "movq %%rsp, 0(%0)\n\t"
        "movq %%rbp, 8(%0)\n\t"
        "movq %%rax, 16(%0)\n\t"
        "movq 0(%1), %%rsp\n\t"
        "movq 8(%1), %%rbp\n\t"
        "jmpq *16(%1)\n"
        "1:"
        : "+D"(from), "+S"(to)
        :
        : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1",
          "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13",
          "xmm14", "xmm15", "memory", "cc");
  }

  // Where the fiber that runs on the calling thread goes back to. There is one at a time.
  static inline constinit thread_local Place outside_{};
  Place inside_{};
  Buffer<std::byte> stack_;
};

#else

class Fiber {
 public:
  using Body = void (*)(void* argument);  // never returns: it yields for ever

  Fiber(Body body, void* argument);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void resume();  // from the thread that owns it: runs the fiber until it yields
  void yield();   // from inside

 private:
  struct Contexts;
  std::unique_ptr<Contexts> contexts_;
};

#endif

}  // namespace outrider::cuda::emulation
