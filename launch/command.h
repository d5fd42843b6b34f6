// A command of the program. The table of all is command_table.cpp.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "requests/request_params.h"
#include "start/flags/generation_config.h"

namespace outrider {

// Where a command keeps what the model's generation_config.json gives it.
struct SamplingDefaults {
  const std::string& choice;  // of --generation-config
  const std::string& model;
  RequestParams& request;
};

// An entry of the table. Its flags fill `Options`.
template <typename Options>
struct CommandEntry {
  std::string name, help;
  std::function<void(CLI::App&, Options&)> add_flags;  // and the footer
  std::function<int(Options&)> run;                    // returns the exit code; errors were printed
  // Properties that a command may have.
  std::function<bool(const Options&)> is_quiet = nullptr;  // with it: --log-level and --log-format
  std::function<SamplingDefaults(Options&)> sampling_defaults = nullptr;
  bool has_config_layer = false;     // --config, and a variable for each flag
  bool takes_bare_text = false;      // a text without a flag is the prompt where a setting names the model
  bool is_one_process = false;       // refused under mpirun
  bool ignores_environment = false;  // OUTRIDER_ variables that no flag reads are not told
};

// A command and its options, whatever their type.
struct Command {
  std::string name, help;
  std::function<void(CLI::App&)> add_flags;
  std::function<int()> run;
  std::function<bool()> is_quiet;                                      // null: has no log flags
  std::function<Status(const CLI::App& command)> take_model_defaults;  // null: takes none
  bool has_config_layer, takes_bare_text, is_one_process, ignores_environment;
};

template <typename Options>
Command command(CommandEntry<Options> entry) {
  const auto options = std::make_shared<Options>();
  Command made{
      .name = std::move(entry.name),
      .help = std::move(entry.help),
      .add_flags = [options, add = std::move(entry.add_flags)](CLI::App& app) { add(app, *options); },
      .run = [options, run = std::move(entry.run)] { return run(*options); },
      .is_quiet = nullptr,
      .take_model_defaults = nullptr,
      .has_config_layer = entry.has_config_layer,
      .takes_bare_text = entry.takes_bare_text,
      .is_one_process = entry.is_one_process,
      .ignores_environment = entry.ignores_environment};
  if (entry.is_quiet)
    made.is_quiet = [options, is_quiet = std::move(entry.is_quiet)] { return is_quiet(*options); };
  if (entry.sampling_defaults)
    made.take_model_defaults = [options, of = std::move(entry.sampling_defaults)](const CLI::App& app) {
      const SamplingDefaults defaults = of(*options);
      return take_generation_config(app, defaults.choice, defaults.model, defaults.request);
    };
  return made;
}

// In the order of `outrider --help`.
std::vector<Command> all_commands();

}  // namespace outrider
