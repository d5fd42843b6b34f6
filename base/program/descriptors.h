// File descriptors of this process, and the number still available.
#pragma once

namespace outrider {

// Raises the soft limit towards the hard one. Systems keep it at 1024 for programs that use select().
void raise_descriptor_limit();

// The limit, and the number of unused descriptors.
struct Descriptors {
  long limit = 0, free = 0;
};
Descriptors count_descriptors();

}  // namespace outrider
