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

// The text of one key for this command. Empty: the file cannot be read, or has no text there.
std::string text_of_config_file(const std::string& path, const std::string& command, const std::string& key);

}  // namespace outrider
