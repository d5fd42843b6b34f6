#include "tests/support/source_dir.h"

#include <cstdlib>

namespace outrider {

// OUTRIDER_SOURCE_DIR names the source directory for tests that run on another machine.
std::filesystem::path source_dir() {
  const char* elsewhere = std::getenv("OUTRIDER_SOURCE_DIR");
  return elsewhere ? elsewhere : OUTRIDER_SOURCE_DIR;
}

}  // namespace outrider
