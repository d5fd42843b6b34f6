#include "launch/commands/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>
#include <vector>

#include "base/program/exit_codes.h"
#include "base/shell_text.h"
#include "coordinator/gamma/policies.h"
#include "kernels/cpu/isa.h"

namespace outrider {
namespace {

struct Flag {
  std::vector<std::string> names;  // "--model", "-m"
  std::vector<std::string> choices;
  bool takes_value = false, takes_files = false;
  std::string text;
};

struct Command {
  std::string path;  // "study compare"; empty: the program itself
  std::string text;
  std::vector<std::string> commands;
  std::vector<Flag> flags;
  std::vector<std::string> choices;  // of its positional
  bool takes_files = false;          // has a positional without choices
};

// Choices of options that are checked with the settings, because some take more than a word.
std::vector<std::string> known_choices(const std::string& name) {
  static const std::map<std::string, std::vector<std::string>> kChoices = {
      {"rule",
       {"auto", "greedy", "invariant", "naive", "token", "block", "specinfer", "kseq", "swor", "traversal"}},
      {"weight-format", {"auto", "bf16", "int8", "int4", "fp8", "q4_k", "q6_k", "q8_0"}},  // q: of quantize
      {"draft-weight-format", {"auto", "bf16", "int8", "int4", "fp8"}},
      {"activation-format", {"auto", "int8", "bf16"}},
      {"kv-dtype", {"auto", "fp32", "bf16"}},
      {"device", {"auto", "cpu", "cuda"}},
      {"q-format", {"auto", "dense", "hidden", "budget:"}},
      {"speculative-tree", {"off", "auto", "best-first:", "sequoia:"}},
      {"generation-config", {"none", "auto"}}};
  if (name == "gamma-policy") {
    std::vector<std::string> policies{"list"};
    for (const GammaPolicyInfo& policy : gamma_policy_table()) policies.emplace_back(policy.name);
    return policies;
  }
  if (name == "isa") {
    std::vector<std::string> sets = available_isas();
    sets.insert(sets.begin(), "auto");
    return sets;
  }
  const auto known = kChoices.find(name);
  return known == kChoices.end() ? std::vector<std::string>() : known->second;
}

// Whether a value may be the name of a file; numbers are none.
bool may_be_file(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return option.get_items_expected_max() > 0 && !type.starts_with("INT") && !type.starts_with("UINT") &&
         !type.starts_with("FLOAT");
}

// Extracts the choices from "{lockstep,ahead}" in the type's name, where CLI::IsMember writes them.
std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t open = type.find('{'), close = type.find('}');
  std::vector<std::string> out;
  if (open == std::string::npos || close == std::string::npos || close < open)
    return option.get_lnames().empty() ? out : known_choices(option.get_lnames().front());
  std::string word;
  for (const char c : type.substr(open + 1, close - open - 1) + ",")
    if (c != ',')
      word += c;
    else
      out.push_back(std::exchange(word, ""));
  return out;
}

void collect(const CLI::App& app, const std::string& path, std::vector<Command>& out) {
  Command command{.path = path, .text = app.get_description(), .commands = {}, .flags = {}, .choices = {}};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) {
      command.choices = choices_of(*option);
      command.takes_files = command.choices.empty();
      if (!option->nonpositional()) continue;  // some are flags as well
    }
    Flag flag{.names = {}, .choices = choices_of(*option), .text = option->get_description()};
    for (const std::string& name : option->get_lnames()) flag.names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) flag.names.push_back("-" + name);
    flag.takes_value = option->get_items_expected_max() > 0;
    flag.takes_files = may_be_file(*option);
    command.flags.push_back(std::move(flag));
  }
  const auto subcommands = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* subcommand : subcommands) command.commands.push_back(subcommand->get_name());
  out.push_back(std::move(command));
  for (const CLI::App* subcommand : subcommands)
    collect(*subcommand, path.empty() ? subcommand->get_name() : path + " " + subcommand->get_name(), out);
}

std::string in_quotes(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return in_single_quotes(text);
}

// All names come from this program, so they need no quoting.
std::string bash_script(const std::vector<Command>& commands) {
  std::string paths, values, words;
  for (const Command& command : commands) {
    if (!command.path.empty())
      paths += fmt::format("      {}) path={} ;;\n", in_quotes(command.path), in_quotes(command.path));
    std::vector<std::string> names, with_file, with_number;
    for (const Flag& flag : command.flags) {
      names.insert(names.end(), flag.names.begin(), flag.names.end());
      std::vector<std::string> patterns;
      for (const std::string& name : flag.names) patterns.push_back(in_quotes(command.path + ":" + name));
      if (!flag.choices.empty())
        values +=
            fmt::format("    {}) COMPREPLY=($(compgen -W {} -- \"$cur\")); return ;;\n",
                        fmt::join(patterns, "|"), in_quotes(fmt::format("{}", fmt::join(flag.choices, " "))));
      else if (flag.takes_value)
        for (std::string& pattern : patterns)
          (flag.takes_files ? with_file : with_number).push_back(std::move(pattern));
    }
    if (!with_file.empty())
      values += fmt::format("    {}) COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n",
                            fmt::join(with_file, "|"));
    if (!with_number.empty()) values += fmt::format("    {}) return ;;\n", fmt::join(with_number, "|"));
    std::vector<std::string> bare = command.commands;
    bare.insert(bare.end(), command.choices.begin(), command.choices.end());
    words += fmt::format("    {}) flags={} bare={} files={} ;;\n", in_quotes(command.path),
                         in_quotes(fmt::format("{}", fmt::join(names, " "))),
                         in_quotes(fmt::format("{}", fmt::join(bare, " "))), command.takes_files ? 1 : 0);
  }
  return "_outrider() {\n"
         "  local cur=\"${COMP_WORDS[COMP_CWORD]}\" prev=\"${COMP_WORDS[COMP_CWORD-1]}\" path='' i flags='' "
         "bare='' files=0\n"
         "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
         "    case \"${path:+$path }${COMP_WORDS[i]}\" in\n" +
         paths +
         "    esac\n"
         "  done\n"
         "  COMPREPLY=()\n"
         "  case \"$path:$prev\" in\n" +
         values +
         "  esac\n"
         "  case \"$path\" in\n" +
         words +
         "  esac\n"
         "  if [[ $cur == -* ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\"))\n"
         "  else\n"
         "    COMPREPLY=($(compgen -W \"$bare\" -- \"$cur\"))\n"
         "    if [[ $files == 1 ]]; then COMPREPLY+=($(compgen -f -- \"$cur\")); fi\n"
         "  fi\n"
         "  return 0\n"
         "}\n"
         "complete -o filenames -o bashdefault -F _outrider outrider\n";
}

std::string fish_script(const std::vector<Command>& commands) {
  std::string out = "complete -c outrider -f\n";
  for (const Command& command : commands) {
    std::string condition = "__fish_use_subcommand";
    if (!command.path.empty()) {
      condition.clear();
      for (size_t begin = 0; begin < command.path.size();) {  // every word of the path must have been given
        const size_t end = std::min(command.path.find(' ', begin), command.path.size());
        condition += fmt::format("{}__fish_seen_subcommand_from {}", condition.empty() ? "" : "; and ",
                                 command.path.substr(begin, end - begin));
        begin = end + 1;
      }
    }
    for (const Command& other : commands)
      for (const std::string& name : command.commands)
        if (other.path == (command.path.empty() ? name : command.path + " " + name))
          out += fmt::format("complete -c outrider -n {} -a {} -d {}\n", in_quotes(condition), name,
                             in_quotes(other.text));
    for (const std::string& choice : command.choices)
      out += fmt::format("complete -c outrider -n {} -a {}\n", in_quotes(condition), choice);
    if (command.takes_files) out += fmt::format("complete -c outrider -n {} -F\n", in_quotes(condition));
    for (const Flag& flag : command.flags) {
      out += fmt::format("complete -c outrider -n {}", in_quotes(condition));
      for (const std::string& name : flag.names)
        out += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      if (!flag.choices.empty())
        out += fmt::format(" -x -a {}", in_quotes(fmt::format("{}", fmt::join(flag.choices, " "))));
      else if (flag.takes_value)
        out += flag.takes_files ? " -r -F" : " -x";
      out += fmt::format(" -d {}\n", in_quotes(flag.text));
    }
  }
  return out;
}

std::string completion_script(const CLI::App& app, const std::string& shell) {
  std::vector<Command> commands;
  collect(app, "", commands);
  if (shell == "fish") return fish_script(commands);
  return (shell == "zsh" ? "autoload -U +X bashcompinit && bashcompinit\n" : "") + bash_script(commands);
}

}  // namespace

void add_completion_options(CLI::App& app, CompletionOptions& o) {
  o.program = app.get_parent();
  app.add_option("shell", o.shell, "Which")->check(CLI::IsMember({"bash", "zsh", "fish"}))->required();
  app.footer(
      "Examples:\n"
      "  source <(outrider completion bash)        # in ~/.bashrc or ~/.zshrc, there with zsh\n"
      "  outrider completion fish | source         # in config.fish");
}

int run_completion(const CompletionOptions& options) {
  std::fputs(completion_script(*options.program, options.shell).c_str(), stdout);
  return kExitOk;
}

}  // namespace outrider
