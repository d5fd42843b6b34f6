#include "tests/support/source_dir.h"

namespace outrider {

std::filesystem::path source_dir() { return OUTRIDER_SOURCE_DIR; }

}  // namespace outrider
