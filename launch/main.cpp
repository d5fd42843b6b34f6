// The `outrider` program: parses the command line and hands over to a command.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>
#include <sstream>

#include "base/log.h"
#include "base/log_level.h"
#include "base/printable.h"
#include "base/program/bus_error.h"
#include "base/program/descriptors.h"
#include "base/program/exit_codes.h"
#include "base/program/temporary_file.h"
#include "base/threads.h"
#include "launch/command.h"
#include "launch/commands/generate.h"
#include "requests/provenance.h"
#include "start/flags/command_line.h"
#include "start/flags/help_format.h"
#include "start/flags/options.h"
#include "start/mpi_cluster.h"

namespace {

using namespace outrider;

// A closed standard stream would give its number to the next file that is opened, and output would go there.
// Standard output is opened read-only, so that writing to it stays an error, which is reported.
void occupy_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd)
    if (fcntl(fd, F_GETFD) == -1 && open("/dev/null", fd == 2 ? O_WRONLY : O_RDONLY) != fd) std::abort();
}

// Prints an error that all ranks share once.
int refuse(const std::string& text) {
  if (MpiCluster::launched()) return MpiCluster::leave("", text, kExitUsage);
  std::fputs(text.c_str(), stderr);
  return kExitUsage;
}

// The program's parser and its commands, each with the parser of its own flags.
struct Program {
  CLI::App app{"Distributed speculative decoding: the target model's own text, sooner.", "outrider"};
  std::vector<Command> commands = all_commands();
  std::vector<CLI::App*> parsers;  // of the commands, in their order
  LogFlags log_flags;
  std::string config_file;
};

void add_commands(Program& program) {
  for (const Command& command : program.commands) {
    CLI::App& parser = *program.parsers.emplace_back(program.app.add_subcommand(command.name, command.help));
    command.add_flags(parser);
    if (command.is_quiet) add_log_options(parser, program.log_flags);
    if (command.has_config_layer) add_config_layer(parser, program.config_file);
  }
  // Last: commands inherit the footer that is there when they are added.
  program.app.footer("outrider help COMMAND explains a command.\n" + std::string(kGenerateExamples));
}

// The words of a command line as they are parsed.
std::vector<std::string> words_of(const Program& program, int argc, char** argv, HelpLength& help_length) {
  std::vector<std::string> words = without_help_forms(argc, argv, help_length);
  name_hub_flags(words);
  if (argc <= 2 || argv[1] != std::string_view("help")) return words;
  const bool is_known = std::any_of(program.commands.begin(), program.commands.end(),
                                    [&](const Command& command) { return command.name == words[1]; });
  if (!is_known) words.pop_back();  // --help, which would hide that there is no such command
  return words;
}

// The place of the command that was given.
size_t chosen(const Program& program) {
  const auto is_given = [](const CLI::App* parser) { return static_cast<bool>(*parser); };
  const auto found = std::find_if(program.parsers.begin(), program.parsers.end(), is_given);
  return static_cast<size_t>(found - program.parsers.begin());
}

// The exit code where the program ends with that: after --help, --version or a wrong word.
std::optional<int> parse(Program& program, std::vector<std::string> words) {
  std::vector<const char*> pointers;
  const auto parse_words = [&] {
    pointers.clear();
    for (const std::string& word : words) pointers.push_back(word.c_str());
    program.app.parse(static_cast<int>(pointers.size()), pointers.data());
  };
  try {
    parse_words();
    const size_t command = chosen(program);
    if (program.commands[command].takes_bare_text && add_model_of_settings(*program.parsers[command], words))
      parse_words();
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    std::ostringstream out, refusal;
    const int code = program.app.exit(error, out, refusal) == 0 ? kExitOk : kExitUsage;
    if (code != kExitOk)
      refusal.str(
          explain_parse_error(program.app, error, static_cast<int>(pointers.size()), pointers.data()));
    if (MpiCluster::launched()) return MpiCluster::leave(out.str(), refusal.str(), code);
    std::fputs(out.str().c_str(), stdout);
    std::fputs(refusal.str().c_str(), stderr);
    return code;
  }
}

int run_command(const Program& program, const Command& command, const CLI::App& parser) {
  if (const Status outputs = check_outputs(program.app); !outputs.ok())
    return refuse(fmt::format("outrider: {}\n", outputs.message()));
  if (command.is_quiet) apply_log_flags(program.log_flags, command.is_quiet());
  if (!command.ignores_environment && MpiCluster::is_first())
    std::fputs(explain_unread_variables(program.app, environ).c_str(), stderr);
  if (command.is_one_process && MpiCluster::launched())
    return refuse(fmt::format("outrider: {} is one process; start it without mpirun\n", command.name));
  if (command.take_model_defaults)
    if (const Status taken = command.take_model_defaults(parser); !taken.ok())
      return refuse(fmt::format("outrider: {}\n", taken.message()));
  try {
    return command.run();
  } catch (const std::exception& error) {
    tell_error(what_failed(error));
    return kExitRuntime;
  }
}

int run(int argc, char** argv) {
  occupy_standard_streams();
  init_logging();
  if (const std::string wrong = wrong_log_level(); !wrong.empty())
    return refuse(fmt::format("outrider: {}\n", wrong));
  remove_temporary_file_on_signals();
  raise_descriptor_limit();
  explain_bus_errors();
  std::signal(SIGPIPE, SIG_IGN);  // a reader that leaves is a write error, told once
  Program program;
  HelpLength help_length;
  std::vector<std::string> words = words_of(program, argc, argv, help_length);
  program.app.formatter(help_formatter(help_width(), help_length));
  program.app.set_version_flag("--version", version_text, "Version, commit and what is built in");
  program.app.require_subcommand(1);
  add_commands(program);
  if (const std::optional<int> code = parse(program, std::move(words))) return *code;
  const size_t command = chosen(program);
  return run_command(program, program.commands[command], *program.parsers[command]);
}

// Whether the reader of standard output closed it, as `| head` does once it has its lines. That is no error.
bool reader_left() {
  pollfd out{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

}  // namespace

// The final flush of standard output may fail, for instance on a full disk.
int main(int argc, char** argv) {
  const int code = run(argc, argv);
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  if (code != outrider::kExitOk || reader_left()) return code;  // told already, or no error
  outrider::tell_error(
      fmt::format("standard output: cannot be written: {}", std::strerror(errno != 0 ? errno : EIO)));
  return outrider::kExitRuntime;
}
