// A hint to the core, in loops that wait for another thread by polling.
#pragma once

namespace outrider {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace outrider
