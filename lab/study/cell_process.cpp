#include "lab/study/cell_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <thread>

#include "start/own_program.h"

namespace outrider {
namespace {

using Clock = std::chrono::steady_clock;

// Short against any cell, and too rare to disturb what it measures.
constexpr std::chrono::milliseconds kPoll{5};

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& s : strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

std::vector<char*> environment() {
  std::vector<char*> out;
  for (char** e = environ; *e; ++e)
    if (!std::string_view(*e).starts_with("OUTRIDER_")) out.push_back(*e);
  out.push_back(nullptr);
  return out;
}

// In the child: only async-signal-safe calls.
[[noreturn]] void become_cell(pid_t parent, const char* program, char* const* argv, char* const* env,
                              const char* directory, const char* error_file) {
  setpgid(0, 0);  // Ctrl-C ends the study, and only through that the cell
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int nothing = open("/dev/null", O_RDWR);
  const int err = open(error_file, O_WRONLY | O_CREAT | O_TRUNC, 0666);
  const bool ready = getppid() == parent && nothing >= 0 && err >= 0 && dup2(nothing, 0) == 0 &&
                     dup2(nothing, 1) == 1 && dup2(err, 2) == 2 && chdir(directory) == 0;
  if (ready) execve(program, argv, env);
  _exit(127);
}

}  // namespace

std::string CellEnd::describe() const {
  if (timed_out) return fmt::format("stopped after {:.0f} s (cell-timeout-s)", seconds);
  if (signal != 0) return fmt::format("ended by signal {}", signal);
  return fmt::format("exit code {}", code);
}

std::string last_words(const std::string& error_file) {
  constexpr size_t kErrorBytes = 600;
  std::ifstream file(error_file, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (text.size() > kErrorBytes) text.erase(0, text.size() - kErrorBytes);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

CellEnd run_cell_process(std::vector<std::string> arguments, const std::string& directory,
                         const std::string& error_file, int timeout_s) {
  const auto argv = pointers(arguments), env = environment();
  const std::string program = own_program();
  const pid_t parent = getpid();
  const auto start = Clock::now();
  const auto elapsed = [start] { return Clock::now() - start; };
  const pid_t pid = fork();
  if (pid == 0)
    become_cell(parent, program.c_str(), argv.data(), env.data(), directory.c_str(), error_file.c_str());
  if (pid < 0)
    throw std::runtime_error(
        fmt::format("no process can be started: {}; ulimit -u, ulimit -v and the control group's pids.max "
                    "limit processes",
                    std::strerror(errno)));

  CellEnd end;
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (elapsed() > std::chrono::seconds(timeout_s)) {
      end.timed_out = true;
      kill(-pid, SIGKILL);
      waitpid(pid, &status, 0);
      break;
    }
    std::this_thread::sleep_for(kPoll);
  }
  end.seconds = std::chrono::duration<double>(elapsed()).count();
  if (WIFEXITED(status)) end.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
  return end;
}

}  // namespace outrider
