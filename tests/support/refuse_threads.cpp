// Emulates a limit on threads that does not affect other processes of the machine. It is loaded in front of
// the C library (LD_PRELOAD) or linked into a test program. Its pthread_create refuses, as the kernel does at
// a limit, while OUTRIDER_TEST_MOST_THREADS threads created by it are alive. Unset: no limit.
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

namespace {

std::atomic<int> alive{0};

struct Start {
  void* (*run)(void*);
  void* argument;
};

void* counted(void* given) {
  const Start start = *static_cast<Start*>(given);
  delete static_cast<Start*>(given);
  void* const result = start.run(start.argument);
  --alive;
  return result;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int pthread_create(pthread_t* thread,
                                                                     const pthread_attr_t* attributes,
                                                                     void* (*run)(void*),
                                                                     void* argument) noexcept {
  static const auto real = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  const char* const most = std::getenv("OUTRIDER_TEST_MOST_THREADS");
  if (alive.fetch_add(1) >= (most ? std::atoi(most) : 1 << 20)) {
    --alive;
    return EAGAIN;
  }
  auto* const start = new Start{run, argument};
  const int error = real(thread, attributes, counted, start);
  if (error == 0) return 0;
  delete start;
  --alive;
  return error;
}
