#include "launch/command_line.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <vector>

#include "base/nearest.h"

namespace outrider {
namespace {

std::vector<std::string> long_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

std::string did_you_mean(std::string_view nearest) {
  return nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest);
}

// One `key = value` of the file, unless the command line or the environment has it. Python's underscores are
// accepted.
void apply(CLI::App& command, const CLI::ConfigItem& item) {
  std::string key = item.name;
  std::replace(key.begin(), key.end(), '_', '-');
  const bool here = item.parents.empty() || item.parents == std::vector<std::string>{command.get_name()};
  CLI::Option* const option =
      here && key != "help" && key != "config" ? command.get_option_no_throw("--" + key) : nullptr;
  if (!option) {
    const auto names = long_names(command);
    std::string_view nearest = nearest_name(names, "--" + key);
    if (!nearest.empty()) nearest.remove_prefix(2);
    throw CLI::FileError(fmt::format("there is no option {}{}", item.fullname(), did_you_mean(nearest)));
  }
  if (option->count() > 0) return;
  if (option->get_expected_min() == 0)
    option->add_result(option->get_flag_value(key, CLI::ConfigTOML().to_flag(item)));
  else
    option->add_result(item.inputs);
  option->run_callback();
}

void read_config(CLI::App& command, const std::string& path) {
  // CLI11's reader takes anything for a file, and a directory for an empty one.
  struct stat info {};
  std::ifstream file(path);
  if (!file || stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode))
    throw CLI::FileError(fmt::format("--config {}: cannot be read; name a TOML file", path));
  try {
    for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_config(file))
      if (item.name != "++" && item.name != "--") apply(command, item);  // section marks
  } catch (const CLI::Error& error) {
    throw CLI::FileError(fmt::format("--config {}: {}", path, error.what()));
  }
}

std::string explain_extras(const CLI::App& command) {
  const std::vector<std::string> extras = command.remaining(true);
  if (extras.empty())
    return fmt::format("flags stand behind the command: outrider {} --flag ...", command.get_name());
  const auto flag =
      std::find_if(extras.begin(), extras.end(), [](const std::string& e) { return e.starts_with("-"); });
  if (flag == extras.end())
    return fmt::format("\"{}\" belongs to no flag; put quotes around a text with spaces", extras.front());
  const std::string name = flag->substr(0, flag->find('='));
  const auto names = long_names(command);
  return fmt::format("there is no flag {}{}", name, did_you_mean(nearest_name(names, name)));
}

}  // namespace

void add_config_layer(CLI::App& command, std::string& config_file) {
  for (CLI::Option* option : command.get_options()) {
    option->allow_extra_args(false);  // a flag that may be repeated takes one value each time
    if (option->get_expected_max() <= 1) option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  command.add_option("--config", config_file,
                     "TOML file with any of these options by their long names. Flags override OUTRIDER_ "
                     "variables, and these "
                     "the file");
  // CLI11 itself lets the file win over the environment, and reads it for the main command only. It calls
  // this after the command line and the environment are in.
  command.parse_complete_callback([&command, &config_file] {
    if (!config_file.empty()) read_config(command, config_file);
  });
}

std::string explain_parse_error(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  const auto commands = app.get_subcommands();  // those that were named
  if (!commands.empty()) {
    const CLI::App& command = *commands.front();
    if (const auto names = command_names(command); !names.empty() && command.get_subcommands().empty())
      return fmt::format("outrider: {}: say what to do: {}. `outrider {} --help` explains them.\n",
                         command.get_name(), fmt::join(names, " or "), command.get_name());
    const bool extras = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError);
    return fmt::format("outrider: {}\n`outrider {} --help` explains every flag.\n",
                       extras ? explain_extras(command) : error.what(), command.get_name());
  }
  const std::vector<std::string> names = command_names(app);
  if (argc < 2 || argv[1][0] == '-')
    return fmt::format("outrider: say what to do first: {}. `outrider --help` explains them.\n",
                       fmt::join(names, " or "));
  return fmt::format("outrider: there is no command {}{}. `outrider --help` shows all.\n", argv[1],
                     did_you_mean(nearest_name(names, argv[1])));
}

}  // namespace outrider
