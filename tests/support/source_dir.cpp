#include "tests/support/source_dir.h"

#include <cstdlib>

namespace outrider {

// Tests that were moved to another machine with their files are told where these are.
std::filesystem::path source_dir() {
  const char* elsewhere = std::getenv("OUTRIDER_SOURCE_DIR");
  return elsewhere ? elsewhere : OUTRIDER_SOURCE_DIR;
}

}  // namespace outrider
