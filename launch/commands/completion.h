// `outrider completion SHELL`: a script that completes commands, flags and their values, made of the commands
// themselves, so that it knows every flag there is.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace outrider {

struct CompletionOptions {
  std::string shell;  // bash, zsh or fish
  const CLI::App* program = nullptr;
};

// To the command of a program named `outrider`, whose commands the script will know.
void add_completion_options(CLI::App& app, CompletionOptions& options);

// Prints the script. Returns the exit code.
int run_completion(const CompletionOptions& options);

}  // namespace outrider
