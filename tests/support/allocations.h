// How often this thread has asked for memory. Linking allocations.cpp replaces operator new.
#pragma once

#include <cstdint>

namespace outrider::testing {

int64_t allocations_here();

}  // namespace outrider::testing
