#include "tests/support/background_process.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

namespace outrider::testing {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLook{5};

std::vector<pid_t> children_of(pid_t pid) {
  std::vector<pid_t> children;
  const std::string process = "/proc/" + std::to_string(pid) + "/task";
  std::error_code gone;
  for (const auto& task : std::filesystem::directory_iterator(process, gone)) {
    std::istringstream list(read_file(task.path() / "children"));
    for (pid_t child = 0; list >> child;) children.push_back(child);
  }
  return children;
}

}  // namespace

BackgroundProcess::BackgroundProcess(const TemporaryDirectory& directory, const std::string& name,
                                     std::vector<std::string> argv)
    : out_(directory / (name + ".out")), err_(directory / (name + ".err")) {
  std::vector<char*> pointers;
  for (std::string& argument : argv) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  const int out = open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  const int err = open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  pid_ = fork();
  if (pid_ == 0) {
    heed_signals();
    dup2(open("/dev/null", O_RDONLY), 0);
    dup2(out, 1);
    dup2(err, 2);
    execvp(pointers[0], pointers.data());
    _exit(127);
  }
  close(out);
  close(err);
  if (pid_ < 0) throw std::runtime_error("fork");
}

BackgroundProcess::BackgroundProcess(BackgroundProcess&& other) noexcept
    : out_(std::move(other.out_)),
      err_(std::move(other.err_)),
      pid_(std::exchange(other.pid_, -1)),
      ended_(std::exchange(other.ended_, true)),
      code_(other.code_) {}

BackgroundProcess::~BackgroundProcess() {
  if (ended()) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void BackgroundProcess::signal(int number) const {
  if (!ended_) kill(pid_, number);
}

bool BackgroundProcess::ended() {
  int status = 0;
  if (ended_ || waitpid(pid_, &status, WNOHANG) != pid_) return ended_;
  code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return ended_ = true;
}

bool BackgroundProcess::says(const std::string& text, std::chrono::seconds limit) {
  const auto deadline = Clock::now() + kPatience * limit;
  while (Clock::now() < deadline) {
    const bool over = ended();  // before looking, so that its last words count
    if (err().find(text) != std::string::npos) return true;
    if (over) return false;
    std::this_thread::sleep_for(kLook);
  }
  return false;
}

size_t BackgroundProcess::peak_memory() const {
  const std::string status = read_file("/proc/" + std::to_string(pid_) + "/status");
  const size_t at = status.find("VmHWM:");
  return at == std::string::npos ? 0 : std::stoull(status.substr(at + 6)) * 1024;
}

std::vector<pid_t> BackgroundProcess::descendants(const std::string& argument) const {
  std::vector<pid_t> found, left{pid_};
  while (!left.empty()) {
    const pid_t parent = left.back();
    left.pop_back();
    for (const pid_t child : children_of(parent)) {
      left.push_back(child);
      // Arguments end with zeros.
      const std::string arguments = read_file("/proc/" + std::to_string(child) + "/cmdline");
      if (arguments.find('\0' + argument + '\0') != std::string::npos) found.push_back(child);
    }
  }
  return found;
}

int BackgroundProcess::wait(std::chrono::seconds limit) {
  const auto deadline = Clock::now() + kPatience * limit;
  while (!ended() && Clock::now() < deadline) std::this_thread::sleep_for(kLook);
  return code_;
}

}  // namespace outrider::testing
