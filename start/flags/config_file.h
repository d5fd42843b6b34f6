// --config FILE: values of options from a TOML file.
#pragma once

#include <string>

#include "base/status.h"

namespace CLI {
class App;
}

namespace outrider {

// Gives every option that the file names its value, unless it has one. Keys are the options' long names, at
// the top or in a table of the command's name.
Status apply_config_file(CLI::App& command, const std::string& path);

}  // namespace outrider
