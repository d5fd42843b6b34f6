// Fibers for the emulation of a thread block: stacks that are switched by hand, all on one host thread.
#pragma once

#include <cstddef>
#include <memory>

namespace outrider::cuda::emulation {

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

}  // namespace outrider::cuda::emulation
