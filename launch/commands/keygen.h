// `outrider keygen`: a key pair for connections that leave the machine.
#pragma once

#include <string>

namespace outrider {

// Writes FILE (mode 0600: both keys) and FILE.pub (the public one, to hand out). Returns the exit code.
int run_keygen(const std::string& file);

}  // namespace outrider
