// Loads and stores of code that is compiled with -fsanitize=thread: the compiler calls these before each.
// ThreadSanitizer's own library is not linked.
#include <map>

#include "tests/emulation/race_order.h"
#include "tests/emulation/race_shadow.h"

namespace races = outrider::cuda::emulation::races;
using races::Access;

namespace {

inline void report(const void* at, size_t bytes, Access access, const void* code) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  if (races::is_watched(address)) races::access(address, bytes, access, code);
}

// An atomic of a kernel publishes what its thread knows, learns what others published, or both.
std::map<uintptr_t, races::Knowledge>& published() {
  static std::map<uintptr_t, races::Knowledge> instance;
  return instance;
}

template <class T, class Operation>
T run_atomic(const volatile T* at, Access access, int order, bool keeps, const void* code,
             Operation operation) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  races::Running& r = races::running();
  if (!races::is_watched(address) || r.operation == 0) return operation();
  races::access(address, sizeof(T), access, code);
  const std::lock_guard lock(races::mutex());
  const T result = operation();
  races::Knowledge& knowledge = published()[address];
  if (order == __ATOMIC_ACQUIRE || order >= __ATOMIC_ACQ_REL) r.acquire(knowledge);
  if (access != Access::kAtomicWrite) return result;
  if (!keeps) knowledge = {};  // a store ends what others released before
  if (order >= __ATOMIC_RELEASE) knowledge.add(r.release());
  return result;
}

}  // namespace

// As ThreadSanitizer's interface names them; no header of ours declares them.
#pragma GCC diagnostic ignored "-Wmissing-declarations"
#define CODE __builtin_return_address(0)

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_read_range(void* at, size_t bytes) { report(at, bytes, Access::kRead, CODE); }
void __tsan_write_range(void* at, size_t bytes) { report(at, bytes, Access::kWrite, CODE); }

#define ACCESSES(bytes)                                                                   \
  void __tsan_read##bytes(void* at) { report(at, bytes, Access::kRead, CODE); }           \
  void __tsan_write##bytes(void* at) { report(at, bytes, Access::kWrite, CODE); }         \
  void __tsan_unaligned_read##bytes(void* at) { report(at, bytes, Access::kRead, CODE); } \
  void __tsan_unaligned_write##bytes(void* at) { report(at, bytes, Access::kWrite, CODE); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

// Those that the code here needs: the linker names what is missing.
#define ATOMIC_LOAD(bits, T)                                                  \
  T __tsan_atomic##bits##_load(const volatile T* at, int order) {             \
    return run_atomic(at, Access::kAtomicRead, order, true, CODE,             \
                      [&] { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }); \
  }
#define ATOMIC_UPDATE(bits, T, name)                                                 \
  T __tsan_atomic##bits##_##name(volatile T* at, T value, int order) {               \
    return run_atomic(at, Access::kAtomicWrite, order, true, CODE,                   \
                      [&] { return __atomic_##name(at, value, __ATOMIC_SEQ_CST); }); \
  }
ATOMIC_LOAD(8, unsigned char)
ATOMIC_LOAD(32, unsigned)
ATOMIC_UPDATE(32, unsigned, fetch_add)
ATOMIC_UPDATE(32, unsigned, fetch_sub)
ATOMIC_UPDATE(32, unsigned, fetch_or)
ATOMIC_UPDATE(64, unsigned long, fetch_add)

#define ATOMIC_EXCHANGE(bits, T)                                                         \
  T __tsan_atomic##bits##_exchange(volatile T* at, T value, int order) {                 \
    return run_atomic(at, Access::kAtomicWrite, order, true, CODE,                       \
                      [&] { return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST); }); \
  }
ATOMIC_EXCHANGE(8, unsigned char)
ATOMIC_EXCHANGE(32, unsigned)

void __tsan_atomic32_store(volatile unsigned* at, unsigned value, int order) {
  run_atomic(at, Access::kAtomicWrite, order, false, CODE, [&] {
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);
    return value;
  });
}
bool __tsan_atomic32_compare_exchange_weak(volatile unsigned* at, unsigned* expected, unsigned value,
                                           int order, int) {
  return run_atomic(at, Access::kAtomicWrite, order, true, CODE, [&]() -> unsigned {
    return __atomic_compare_exchange_n(at, expected, value, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  });
}

// Copies on the host (linked with --wrap): those of unknown size are calls, not loads and stores.
void* __real_memcpy(void* to, const void* from, size_t bytes);
void* __real_memmove(void* to, const void* from, size_t bytes);

static void host_copies(void* to, const void* from, size_t bytes, const void* code) {
  if (races::running().operation != 0) return;
  report(from, bytes, Access::kRead, code);
  report(to, bytes, Access::kWrite, code);
}
void* __wrap_memcpy(void* to, const void* from, size_t bytes) {
  host_copies(to, from, bytes, CODE);
  return __real_memcpy(to, from, bytes);
}
void* __wrap_memmove(void* to, const void* from, size_t bytes) {
  host_copies(to, from, bytes, CODE);
  return __real_memmove(to, from, bytes);
}
}
