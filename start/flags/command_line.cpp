#include "start/flags/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/nearest.h"
#include "start/flags/config_file.h"

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

constexpr std::string_view kPrefix = "OUTRIDER_";

// Known variables without the prefix: those of options, of base/log.cpp, and those that scripts, tests and
// benches read, or set for their children.
std::vector<std::string> variable_names(const CLI::App& app) {
  std::vector<std::string> names{
      "LOG",         "BUILD",         "SOURCE_DIR",  "TARGETS",      "TEST_DATA",
      "TEST_OUTAGE", "BENCH_ISA",     "BENCH_MODEL", "AZURE_TRACE",  "TEST_GRAMMAR_LIBRARY",
      "TEST_PYTHON", "SUITE_SECONDS", "SUITE_PACK",  "FUZZ_SECONDS", "RUN_DIR",
      "JOIN_PORT",   "TARGET_GROUPS"};
  for (const CLI::App* command : app.get_subcommands({}))
    for (const CLI::Option* option : command->get_options())
      if (const std::string name = option->get_envname(); name.starts_with(kPrefix))
        names.push_back(name.substr(kPrefix.size()));
  return names;
}

// --max-num-seqs: OUTRIDER_MAX_NUM_SEQS. Empty without a long name.
std::string variable_of(const CLI::Option& option) {
  if (option.get_lnames().empty()) return "";
  std::string name = std::string(kPrefix) + option.get_lnames().front();
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

std::string did_you_mean(std::string_view nearest) {
  return nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest);
}

// A flag that the command does not have; empty: there is none.
std::string unknown_flag(const CLI::App& command) {
  for (const std::string& extra : command.remaining(true))
    if (extra.starts_with("-")) return extra.substr(0, extra.find('='));
  return "";
}

std::string explain_unknown(const CLI::App& command, const std::string& flag) {
  return fmt::format("there is no flag {}{}", flag, did_you_mean(nearest_flag(command, flag)));
}

std::string explain_extras(const CLI::App& command, const std::string& path) {
  const std::vector<std::string> extras = command.remaining(true);
  if (extras.empty()) return fmt::format("flags stand behind the command: outrider {} --flag ...", path);
  const std::string flag = unknown_flag(command);
  if (flag.empty()) {
    for (const char* text : {"--prompt", "MESSAGE"})
      if (const CLI::Option* const given = command.get_option_no_throw(text); given && given->count() > 0)
        return fmt::format("\"{}\" is a second text beside \"{}\"; put quotes around a text with spaces",
                           extras.front(), given->results().front());
    return fmt::format("\"{}\" belongs to no flag; put quotes around a text with spaces", extras.front());
  }
  return explain_unknown(command, flag);
}

// The text behind `prefix`; nothing: the text begins otherwise.
std::optional<std::string> behind(const std::string& text, const std::string& prefix) {
  return text.starts_with(prefix) ? std::optional(text.substr(prefix.size())) : std::nullopt;
}

std::string type_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();  // with what checks say of themselves behind it
  if (option.get_expected_min() == 0) return "true or false";
  if (type.starts_with("FLOAT")) return "a number";
  return type.starts_with("TEXT") ? "a text" : "a whole number";
}

// The flag as the user wrote it, -g or --num-speculative-tokens.
std::string typed_name(const CLI::Option& option, int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string word(argv[i]), name = word.substr(0, word.find('='));
    for (const std::string& known : option.get_lnames())
      if (name == "--" + known) return name;
    for (const std::string& known : option.get_snames())
      if (word.starts_with("-" + known) && !word.starts_with("--")) return "-" + known;
  }
  return option.get_name();
}

// "--port abc: must be 0 to 65535" for an error of CLI11 about an option; other errors as they are.
std::string explain_error(const CLI::App& command, const std::string& error, int argc,
                          const char* const* argv) {
  // A misspelt flag is the cause where another one is missing, and its value counts as a text.
  if (const std::string unknown = unknown_flag(command); !unknown.empty())
    return explain_unknown(command, unknown);
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name(), typed = typed_name(*option, argc, argv);
    if (const auto rest = behind(error, name + ": ")) {
      if (rest->find(" required ") != std::string::npos && rest->ends_with(" missing"))
        return fmt::format("{} needs a value: {}", typed, type_of(*option));
      if (rest->starts_with("At Most 1 required but received"))
        return fmt::format("{} is given more than once{}; keep one", name,
                           option->get_positional() ? " (a text without a flag counts, too)" : "");
    }
    if (const auto rest = behind(error, name + ": "); rest && rest->starts_with(name))
      return *rest;  // a whole sentence about the flag
    const std::string rule = broken_rule(*option, error);
    if (rule.empty()) continue;
    const std::vector<std::string> values = option->results();
    return fmt::format("{} {}: {}", typed, values.empty() ? "" : values.back(), rule);
  }
  return error;
}

// A word where the command wants the name of a subcommand; empty: there is none.
std::string wrong_subcommand(const CLI::App& command) {
  const std::vector<std::string> extras = command.remaining(true);
  return extras.empty() || extras.front().starts_with("-") ? "" : extras.front();
}

// " (from OUTRIDER_X)", if the wrong value came from the environment.
std::string source_of(const CLI::App& command, std::string_view error) {
  for (const CLI::Option* option : command.get_options()) {
    const char* const value = std::getenv(option->get_envname().c_str());
    if (value && option->results() == std::vector<std::string>{value} &&
        error.find(option->get_name()) != std::string_view::npos)
      return fmt::format(" (from {})", option->get_envname());
  }
  return "";
}

// The innermost command, such as `simulate run`, if it was named.
const CLI::App& innermost(const CLI::App& command) {
  const auto named = command.get_subcommands();
  return named.empty() ? command : innermost(*named.front());
}

// The command's path as it is typed: "simulate run".
std::string path_of(const CLI::App& command) {
  const CLI::App* const parent = command.get_parent();
  const bool is_inner = parent && parent->get_parent();
  return (is_inner ? path_of(*parent) + " " : "") + command.get_name();
}

}  // namespace

std::string broken_rule(const CLI::Option& option, const std::string& error) {
  const std::string name = option.get_name();
  if (behind(error, "Could not convert: " + name + " = ")) {
    const std::vector<std::string> values = option.results();
    const bool is_number = !values.empty() && !values.back().empty() &&
                           values.back().find_first_not_of("-0123456789") == std::string::npos;
    return is_number ? "is out of range" : "must be " + type_of(option);
  }
  const auto rest = behind(error, name + ": ");
  if (!rest) return {};
  if (const size_t range = rest->find(" not in range ");
      rest->starts_with("Value ") && range != std::string::npos)
    return "must be " + rest->substr(range + std::string_view(" not in range ").size());
  if (const size_t list = rest->find(" not in {"); list != std::string::npos && rest->ends_with("}")) {
    std::string names = rest->substr(list + std::string_view(" not in {").size());
    names.pop_back();
    for (size_t comma = names.find(','); comma != std::string::npos; comma = names.find(',', comma + 2))
      names.replace(comma, 1, ", ");
    return "must be one of " + names;
  }
  if (rest->starts_with("\"")) return *rest;  // a key of the value, with its rule
  if (const size_t rule = rest->find(" must be "); rule != std::string::npos) return rest->substr(rule + 1);
  return {};
}

std::string nearest_flag(const CLI::App& command, const std::string& name) {
  const auto names = long_names(command);
  return std::string(nearest_name(names, name));
}

void add_config_layer(CLI::App& command, std::string& config_file) {
  for (CLI::Option* option : command.get_options()) {
    if (option != command.get_help_ptr()) option->envname(variable_of(*option));
    option->allow_extra_args(false);  // a flag that may be repeated takes one value each time
    // A text behind the command and --prompt are two texts; of two models one would be ignored.
    const auto is = [&](const char* name) { return option == command.get_option_no_throw(name); };
    if (option->get_expected_max() <= 1 && !is("--prompt") && !is("--model") && !is("--draft-model"))
      option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  add_config_file(command, config_file);
  command.get_option("--config")
      ->description(
          "TOML file with any of these options by their long names. Flags override OUTRIDER_ "
          "variables, and these the file");
}

void add_config_file(CLI::App& command, std::string& config_file) {
  command.add_option("--config", config_file,
                     "TOML file with any of these options by their long names; flags override it");
  // CLI11 checks before the file is read whether an option is missing.
  std::vector<CLI::Option*> required;
  for (CLI::Option* option : command.get_options())
    if (option->get_required()) required.push_back(option->required(false));
  // CLI11 itself would prefer the file to the environment, and read it for the main command only. It makes
  // this call after it has handled the command line and the environment.
  command.parse_complete_callback([&command, &config_file, required] {
    if (!config_file.empty()) {
      const Status applied = apply_config_file(command, config_file);
      if (!applied.ok()) throw CLI::FileError("--config " + applied.message());
    }
    for (const CLI::Option* option : required)
      if (option->count() == 0) throw CLI::RequiredError(option->get_name());
  });
}

namespace {

bool has_name(const CLI::Option& option, std::initializer_list<std::string_view> names) {
  const auto own = option.get_lnames();
  return std::any_of(own.begin(), own.end(), [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  });
}

// Whether the existing file `file` is this value of the option, or lies in the directory of a model.
bool is_read_by(const std::filesystem::path& file, const CLI::Option& option, std::string_view value) {
  namespace fs = std::filesystem;
  std::error_code none;
  if (value.starts_with("@")) value.remove_prefix(1);  // a text in a file
  const fs::path path(value);
  if (fs::is_regular_file(path, none)) return fs::equivalent(file, path, none);
  if (!fs::is_directory(path, none) || !has_name(option, {"model", "draft-model", "base"})) return false;
  const fs::path directory = fs::canonical(path, none), own = fs::canonical(file, none);
  return std::mismatch(directory.begin(), directory.end(), own.begin(), own.end()).first == directory.end();
}

}  // namespace

Status check_outputs(const CLI::App& app) {
  const CLI::App& command = innermost(app);
  for (const CLI::Option* output : command.get_options()) {
    if (!has_name(*output, {"report", "trace", "record-rounds", "rounds", "output", "html", "csv"})) continue;
    for (const std::string& file : output->results()) {
      std::error_code none;
      if (!std::filesystem::is_regular_file(file, none)) continue;
      for (const CLI::Option* input : command.get_options()) {
        // --resume may continue its own output. Two outputs are compared where they are opened.
        if (input == output || has_name(*input, {"resume", "report", "trace", "record-rounds", "rounds",
                                                 "output", "html", "csv"}))
          continue;
        for (const std::string& value : input->results())
          if (is_read_by(file, *input, value))
            return invalid_argument(fmt::format("{} {}: is the file of {} too; choose another one",
                                                output->get_name(), file, input->get_name()));
      }
    }
  }
  return {};
}

bool add_model_of_settings(const CLI::App& command, std::vector<std::string>& words) {
  const CLI::Option *const option = command.get_option("--model"), *const config =
                                                                       command.get_option("--config");
  const char* const variable = std::getenv(option->get_envname().c_str());
  std::string model = variable ? variable : "";
  if (model.empty() && config->count() > 0)
    model = text_of_config_file(config->results().back(), command.get_name(), "model");
  const auto is_given = [&](const char* name) {
    const CLI::Option* const other = command.get_option_no_throw(name);
    return other && other->count() > 0;
  };
  const auto names_model = [](const std::string& word) {
    return word == "--model" || word.starts_with("--model=") ||
           (word.starts_with("-m") && !word.starts_with("--"));
  };
  std::error_code none;
  if (model.empty() || option->count() == 0 || std::any_of(words.begin(), words.end(), names_model) ||
      is_given("--prompt") || is_given("--prompt-file") || is_given("--prompts") || is_given("MESSAGE") ||
      option->results().front() == model || std::filesystem::exists(option->results().front(), none))
    return false;
  words.insert(words.begin() + 2, {"--model", model});  // behind the program and the command
  return true;
}

void name_hub_flags(std::vector<std::string>& words) {
  constexpr std::pair<std::string_view, std::string_view> kFlags[] = {
      {"-hf", "--model"},        {"-hfr", "--model"},        {"--hf-repo", "--model"},
      {"-hfd", "--draft-model"}, {"-hfrd", "--draft-model"}, {"--hf-repo-draft", "--draft-model"}};
  for (std::string& word : words) {
    if (word == "--") return;
    const size_t end = std::min(word.find('='), word.size());
    for (const auto& [theirs, ours] : kFlags)
      if (std::string_view(word).substr(0, end) == theirs) {
        word.replace(0, end, ours);
        break;
      }
  }
}

std::string explain_unread_variables(const CLI::App& app, const char* const* environment) {
  const std::vector<std::string> known = variable_names(app);
  std::string text;
  for (const char* const* entry = environment; *entry; ++entry) {
    const std::string_view variable(*entry, std::strcspn(*entry, "="));
    if (!variable.starts_with(kPrefix)) continue;
    const std::string_view name = variable.substr(kPrefix.size());
    if (name == "PROGRAM") continue;  // for the Python package, which starts this program
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string_view nearest = nearest_name(known, name);
    text += fmt::format("outrider: warning: {} is set, but nothing reads it{}\n", variable,
                        nearest.empty() ? "; --help=all lists the variables"
                                        : fmt::format("; did you mean {}{}?", kPrefix, nearest));
  }
  return text;
}

std::string explain_parse_error(const CLI::App& app, const CLI::ParseError& error, int argc,
                                const char* const* argv) {
  const auto commands = app.get_subcommands();  // those that were named
  if (!commands.empty()) {
    const CLI::App& command = innermost(*commands.front());
    const std::string path = path_of(command);
    const auto names = command_names(command);
    if (const std::string wrong = wrong_subcommand(command);
        !names.empty() && command.get_require_subcommand_min() > 0 && !wrong.empty())
      return fmt::format("outrider: there is no {} {}{}; choose {}\n`outrider {} --help` explains them.\n",
                         path, wrong, did_you_mean(nearest_name(names, wrong)), fmt::join(names, ", "), path);
    if (!names.empty() && command.get_require_subcommand_min() > 0)
      return fmt::format("outrider: {}: say what to do: {}. `outrider {} --help` explains them.\n", path,
                         fmt::join(names, " or "), path);
    const bool extras = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError);
    return fmt::format(
        "outrider: {}{}\n`outrider {} --help` explains every flag.\n",
        extras ? explain_extras(command, path) : explain_error(command, error.what(), argc, argv),
        source_of(command, error.what()), path);
  }
  const std::vector<std::string> names = command_names(app);
  if (argc < 2 || argv[1][0] == '-')
    return fmt::format("outrider: say what to do first: {}. `outrider --help` explains them.\n",
                       fmt::join(names, " or "));
  return fmt::format("outrider: there is no command {}{}\n`outrider --help` shows all.\n", argv[1],
                     did_you_mean(nearest_name(names, argv[1])));
}

}  // namespace outrider
