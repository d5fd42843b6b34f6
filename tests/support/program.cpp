#include "tests/support/program.h"
#include "tests/support/source_dir.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace outrider::testing {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

struct Pipe {
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
    read = ends[0], write = ends[1];
  }
  ~Pipe() {
    close_read();
    close_write();
  }
  void close_read() { read = close_end(read); }
  void close_write() { write = close_end(write); }
  static int close_end(int fd) {
    if (fd >= 0) close(fd);
    return -1;
  }
  int read = -1, write = -1;
};

std::vector<std::string> environment_of(const RunSettings& settings) {
  std::vector<std::string> all;
  for (char** e = environ; *e; ++e) {
    const std::string entry = *e;
    if (!entry.starts_with("OUTRIDER_") && !settings.env.contains(entry.substr(0, entry.find('='))))
      all.push_back(entry);
  }
  for (const auto& [name, value] : settings.env) all.push_back(name + "=" + value);
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& s : strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

// In the child; only async-signal-safe calls.
void connect(const RunSettings& settings, const Pipe& out, const Pipe& err) {
  heed_signals();
  if (settings.in == Stdin::kClosed)
    close(0);
  else
    dup2(open(settings.input.empty() ? "/dev/null" : settings.input.c_str(), O_RDONLY), 0);
  if (settings.out == Stdout::kClosed)
    close(1);
  else
    dup2(settings.out == Stdout::kFullDisk ? open("/dev/full", O_WRONLY) : out.write, 1);
  dup2(err.write, 2);
}

// Appends what is there; closes the pipe at its end.
void drain(Pipe& pipe, std::string& to, bool leave_after_first_byte) {
  char buffer[65536];
  const ssize_t n = read(pipe.read, buffer, leave_after_first_byte ? 1 : sizeof buffer);
  if (n > 0) to.append(buffer, static_cast<size_t>(n));
  if (n == 0 || leave_after_first_byte) pipe.close_read();
}

}  // namespace

void heed_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) std::signal(signal, SIG_DFL);
}

std::string Outcome::describe() const {
  std::ostringstream text;
  for (const std::string& a : arguments) text << a << ' ';
  text << "\nexit code " << code << ", signal " << signal << (hung ? ", HUNG" : "")
       << "\nstdout: " << out.substr(0, 2000) << "\nstderr: " << err.substr(0, 4000);
  return text.str();
}

Outcome run_program(std::vector<std::string> argv, const RunSettings& settings) {
  Outcome outcome{.arguments = argv};
  Pipe out, err;
  std::vector<std::string> environment = environment_of(settings);
  const std::vector<char*> args = pointers(argv), env = pointers(environment);
  const pid_t pid = fork();
  if (pid == 0) {
    setpgid(0, 0);  // so that what it started can be killed with it
    connect(settings, out, err);
    if (settings.directory.empty() || chdir(settings.directory.c_str()) == 0)
      execvpe(args[0], args.data(), env.data());
    _exit(127);
  }
  if (pid < 0) throw std::runtime_error("fork");
  out.close_write();
  err.close_write();

  const auto start = Clock::now();
  Clock::time_point signalled;
  bool sent = settings.signal == 0;
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0 || out.read >= 0 || err.read >= 0) {
    pollfd fds[] = {{out.read, POLLIN, 0}, {err.read, POLLIN, 0}};
    poll(fds, 2, 5);  // negative descriptors are ignored
    if (out.read >= 0 && fds[0].revents) drain(out, outcome.out, settings.out == Stdout::kReaderLeaves);
    if (err.read >= 0 && fds[1].revents) drain(err, outcome.err, false);
    if (!sent && std::filesystem::exists(settings.signal_when)) {
      kill(pid, settings.signal);
      signalled = Clock::now();
      sent = true;
    }
    if (Clock::now() - start > kPatience * settings.limit) {
      outcome.hung = true;
      kill(-pid, SIGKILL);
      waitpid(pid, &status, 0);
      break;
    }
  }
  if (settings.signal != 0 && sent)
    outcome.after_signal = std::chrono::duration_cast<milliseconds>(Clock::now() - signalled);
  if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  return outcome;
}

std::string outrider_path() { return OUTRIDER_PROGRAM; }

Outcome outrider_program(std::vector<std::string> arguments, const RunSettings& settings) {
  arguments.insert(arguments.begin(), outrider_path());
  return run_program(std::move(arguments), settings);
}

std::filesystem::path demo_target() { return outrider::source_dir() / "launch/demo_pair/target"; }
std::filesystem::path demo_draft() { return outrider::source_dir() / "launch/demo_pair/draft"; }

Outcome generate(std::vector<std::string> arguments, const RunSettings& settings) {
  arguments.insert(arguments.begin(), {"generate", "--model", demo_target()});
  return outrider_program(std::move(arguments), settings);
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_file(const std::filesystem::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

}  // namespace outrider::testing
