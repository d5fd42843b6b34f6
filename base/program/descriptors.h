// File descriptors of this process, and how many more it may have.
#pragma once

namespace outrider {

// Raises the soft limit, which systems keep at 1024 for programs that use select(), towards the hard one.
void raise_descriptor_limit();

// The limit, and how many of it are not in use.
struct Descriptors {
  long limit = 0, free = 0;
};
Descriptors count_descriptors();

}  // namespace outrider
