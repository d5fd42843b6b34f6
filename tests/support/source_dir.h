// The source tree, for tests that read fixtures from it.
#pragma once

#include <filesystem>

namespace outrider {

std::filesystem::path source_dir();

}  // namespace outrider
