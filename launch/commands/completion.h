// `outrider completion SHELL`: a script that completes commands, flags and their values, made of the commands
// themselves, so that it knows every flag there is.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace outrider {

// `shell`: bash, zsh or fish. Of a program named `outrider`.
std::string completion_script(const CLI::App& app, const std::string& shell);

}  // namespace outrider
