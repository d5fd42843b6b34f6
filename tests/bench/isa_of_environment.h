// Benches compare instruction sets: OUTRIDER_BENCH_ISA names the one to pin.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "kernels/cpu/isa.h"

namespace outrider::bench {

// False, and told, where this machine does not have it.
inline bool pin_isa_of_environment() {
  const char* isa = std::getenv("OUTRIDER_BENCH_ISA");
  const Status status = isa ? pin_isa(isa) : Status();
  if (!status.ok()) std::fprintf(stderr, "OUTRIDER_BENCH_ISA: %s\n", status.message().c_str());
  return status.ok();
}

}  // namespace outrider::bench
