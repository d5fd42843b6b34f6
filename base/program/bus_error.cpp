#include "base/program/bus_error.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/program/exit_codes.h"
#include "base/program/temporary_file.h"

// Below, a signal handler: no allocation, no locks, only calls that POSIX lists as safe there.
namespace outrider {
namespace {

// Reads /proc/self/maps, one mapping a line: "begin-end mode offset device inode path".
class Maps {
 public:
  Maps() : file_(open("/proc/self/maps", O_RDONLY | O_CLOEXEC)) {}
  Maps(const Maps&) = delete;
  Maps& operator=(const Maps&) = delete;
  ~Maps() {
    if (file_ >= 0) close(file_);
  }

  // Without the newline, cut if too long; empty at the end.
  std::string_view next_line() {
    size_t length = 0;
    for (int c = next(); c >= 0 && c != '\n'; c = next())
      if (length < sizeof line_) line_[length++] = static_cast<char>(c);
    return {line_, length};
  }

 private:
  int next() {
    if (at_ == end_) {
      const ssize_t count = file_ < 0 ? 0 : read(file_, buffer_, sizeof buffer_);
      if (count <= 0) return -1;
      at_ = 0;
      end_ = static_cast<size_t>(count);
    }
    return static_cast<unsigned char>(buffer_[at_++]);
  }

  int file_;
  size_t at_ = 0, end_ = 0;
  char buffer_[1024];
  char line_[4096 + 128];  // PATH_MAX and the text before the path
};

uintptr_t take_hexadecimal(std::string_view& text) {
  uintptr_t value = 0;
  for (; !text.empty(); text.remove_prefix(1)) {
    const char c = text.front();
    if (c >= '0' && c <= '9')
      value = value * 16 + static_cast<uintptr_t>(c - '0');
    else if (c >= 'a' && c <= 'f')
      value = value * 16 + static_cast<uintptr_t>(c - 'a' + 10);
    else
      break;
  }
  return value;
}

// The path of the file mapped at `address`, as a part of the maps' line; empty if there is none.
std::string_view mapped_file(Maps& maps, uintptr_t address) {
  for (std::string_view line = maps.next_line(); !line.empty(); line = maps.next_line()) {
    const uintptr_t begin = take_hexadecimal(line);
    line.remove_prefix(std::min<size_t>(line.size(), 1));
    const uintptr_t end = take_hexadecimal(line);
    if (address < begin || address >= end) continue;
    const size_t path = line.find('/');
    return path == line.npos ? std::string_view() : line.substr(path);
  }
  return {};
}

void say(std::string_view text) { (void)!write(STDERR_FILENO, text.data(), text.size()); }

extern "C" void explain_and_exit(int signal, siginfo_t* info, void*) {
  Maps maps;
  const std::string_view path = mapped_file(maps, reinterpret_cast<uintptr_t>(info->si_addr));
  if (path.empty()) {
    std::signal(signal, SIG_DFL);  // the same access again, or raise(), ends the program
    std::raise(signal);
    return;
  }
  static std::atomic_flag told;
  while (told.test_and_set()) pause();  // another thread came first, and ends the program
  say("outrider: ");
  say(path);
  say(": cannot be read where it is mapped: it became shorter meanwhile, or its disk fails; put the whole "
      "file "
      "back and start again\n");
  remove_temporary_file();
  _exit(kExitRuntime);
}

}  // namespace

void explain_bus_errors() {
  struct sigaction action {};
  action.sa_sigaction = explain_and_exit;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace outrider
