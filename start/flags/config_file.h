// --config FILE: values of options from a TOML file.
#pragma once

#include <string>

#include "base/status.h"

namespace CLI {
class App;
}

namespace outrider {

// Sets every option in the file that has no value yet. Keys are the options' long names, at the top level or
// in a table with the command's name.
Status apply_config_file(CLI::App& command, const std::string& path);

}  // namespace outrider
